"""Measures by data source, type and level."""

from __future__ import annotations

from typing import Any

from mempo.evaluate.breakdown import MOST_VALUES, breakdown_metrics, breakdowns, groups_of
from mempo.evaluate.compare import Entry
from mempo.rollout.question import Question


def line(name: str, em: float | None, is_error: bool = False, **groups: str) -> dict[str, Any]:
    more = {"question_id": name, "rollout": 0, "objectives": 1, "is_error": is_error}
    return {**more, "em": em, "f1": em, "score": em, "groups": groups}


LINES = [
    line("a", 1.0, data_source="nq", level="hard"),
    line("b", 0.0, data_source="nq", level="hard"),
    line("c", 1.0, data_source="popqa", level="hard"),
    line("d", None, is_error=True, data_source="popqa", level="hard"),
]


def test_what_is_kept_of_a_row() -> None:
    meta = {"data_source": "nq", "level": 3, "type": "", "answerable": True, "evidences": ["x"]}
    assert groups_of(Question("q", "?", "x", meta=meta)) == {"data_source": "nq", "level": "3"}
    assert groups_of(Question("q", "?", "x")) == {}


def test_a_file_of_several_sources_is_taken_apart() -> None:
    found = breakdown_metrics(LINES)
    assert list(found) == ["data_source"], "all are hard: nothing to tell apart"
    assert found["data_source"]["nq"] == {
        "questions": 2.0,
        "scored_questions": 2.0,
        "rollouts": 2.0,
        "errors": 0.0,
        "unscored": 0.0,
        "em": 0.5,
        "f1": 0.5,
        "score": 0.5,
    }
    popqa = found["data_source"]["popqa"]
    assert (popqa["em"], popqa["errors"]) == (1.0, 1.0), "what infrastructure spoiled enters no mean"


def test_agents_stand_side_by_side() -> None:
    report = breakdowns([Entry("memory", LINES), Entry("react", LINES[:3])])["data_source"]
    assert [(row.label, row.questions, row.errors) for row in report.rows] == [
        ("memory [nq]", 2, 0),
        ("react [nq]", 2, 0),
        ("memory [popqa]", 1, 1),
        ("react [popqa]", 1, 0),
    ]
    assert report.pairs == ()


def test_what_does_not_divide_is_left_alone() -> None:
    assert breakdown_metrics([*LINES, line("e", 1.0)]) == {}, "one says nothing"
    many = [line(str(i), 1.0, type=str(i)) for i in range(MOST_VALUES + 1)]
    assert breakdown_metrics(many) == {}
    assert breakdown_metrics([{**LINES[0], "groups": "x"}]) == {}
    assert breakdown_metrics([]) == {}
