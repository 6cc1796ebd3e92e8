"""Saved rollouts scored again give what they had; other settings and scorers give what those count."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mempo.config.evaluate import EvalSettings
from mempo.config.rewards import MemorySettings, OutcomeSettings
from mempo.errors import UserError
from mempo.evaluate.rescore import filled, metric_names, rescored, scorers_of
from mempo.evaluate.runner import EvalSetup, evaluate
from mempo.evaluate.saved import read_rollouts, scored_lines
from mempo.rewards.rollout_metrics import counts
from mempo.rollout.question import Question
from mempo.storage.rollouts import tokens_path
from tests.train.fakes import Speaker, agent, questions, wandering

SETTINGS = OutcomeSettings()


def made(tmp_path: Path, asked: list[Question] | None = None) -> Path:
    file = tmp_path / "rollouts.jsonl"
    setup = EvalSetup(agent(), Speaker(wandering), None, SETTINGS, MemorySettings(), seed=0)
    evaluate(setup, asked or questions(12), EvalSettings(rollouts_per_question=3), file)
    return file


def test_scoring_again_changes_nothing_and_reads_no_tokens(tmp_path: Path) -> None:
    file = made(tmp_path)
    before = list(read_rollouts(file).values())
    tokens_path(file).unlink()
    again = scored_lines(file, ["default"], SETTINGS)
    assert again == before
    assert {line["em"] for line in again} == {0.0, 1.0}


def test_other_settings_score_otherwise(tmp_path: Path) -> None:
    lines = scored_lines(made(tmp_path), ["default"], OutcomeSettings(format_gate=False, score="f1"))
    assert all(line["score"] == line["f1"] for line in lines)


def test_published_scorers_stand_beside_ours(tmp_path: Path) -> None:
    scorers = scorers_of("search-r1,mem1")
    lines = scored_lines(made(tmp_path), scorers, SETTINGS)
    assert metric_names(scorers) == ["search-r1/em", "search-r1/sub_em", "mem1/em", "mem1/f1"]
    assert all(line["mem1/em"] == line["search-r1/em"] == line["em"] for line in lines)


def line(**changes: Any) -> dict[str, Any]:
    return filled({"question_id": "7", "answer": "Paris", "gold": ["Paris"], **changes})


def again(made: dict[str, Any], scorers: str = "default", **settings: Any) -> dict[str, Any]:
    (out,) = rescored([made], scorers_of(scorers), OutcomeSettings(**settings))
    return out


def test_predictions_of_other_programs_need_an_answer_and_gold() -> None:
    out = again(line(), "default,asearcher")
    assert (out["question_id"], out["rollout"], out["objectives"], out["em"], out["score"]) == ("7", 0, 1, 1.0, 1.0)
    assert out["asearcher/reward"] == 1.0
    with pytest.raises(UserError, match="has no answer"):
        filled({"question_id": "a"})
    with pytest.raises(UserError, match="question 'a': unusable gold"):
        again(filled({"question_id": "a", "answer": "x", "gold": 3, "objectives": 1}))


def test_what_cannot_be_scored_is_none_and_not_0() -> None:
    spoiled = again(line(is_error=True, answer=None), "default,mem1")
    assert (spoiled["score"], spoiled["mem1/em"]) == (None, None)
    without = again(line(gold=None), "default,mem1")
    assert (without["em"], without["score"], without["mem1/f1"]) == (None, None, None)
    assert again(line(gold=["..."]))["score"] is None
    assert again(line(answer=None))["score"] == 0.0
    assert again(line(stop="context_overflow"), on_overflow="exclude")["score"] is None
    assert again(line(stop="context_overflow"))["score"] == 1.0


def test_scoring_again_decides_again_what_counts() -> None:
    over = line(stop="context_overflow", score=None, unscored="overflow")
    assert (again(dict(over))["score"], again(dict(over))["unscored"]) == (1.0, None)
    assert counts(again(dict(over)))
    for kept_out, reason in (
        (again(line(stop="context_overflow"), on_overflow="exclude"), "overflow"),
        (again(line(gold=["..."])), "unmatchable_gold"),
    ):
        assert (kept_out["unscored"], counts(kept_out)) == (reason, False)
    assert counts(again(line(gold=None))), "without gold, what rollouts cost is still known of all alike"
    own = again(line(score=None, unscored="custom"), score="my.module:score")
    assert not counts(own)


def test_a_broken_format_gates_the_score_alone() -> None:
    broken = again(line(violations={"clean": 1}))
    assert (broken["em"], broken["score"]) == (1.0, 0.0)
    assert again(line(violations={"clean": 1}), format_gate=False)["score"] == 1.0


def test_a_score_of_your_own_stays() -> None:
    assert again(line(score=0.3), score="my.module:score")["score"] == 0.3


def test_one_id_with_two_golds_is_scored_by_each() -> None:
    lines = [line(), line(gold=["Rome"]), line()]
    assert [out["em"] for out in rescored(lines, ["default"], SETTINGS)] == [1.0, 0.0, 1.0]


def test_verdicts_are_joined_while_they_fit(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text(json.dumps({"question_id": "a", "answer": "Paris", "gold": "Paris"}) + "\n", "utf-8")
    verdict = {"question_id": "a", "rollout": 0, "answer": "Paris", "judge": 1.0}
    (tmp_path / "p.judge.jsonl").write_text(json.dumps(verdict) + "\n", "utf-8")
    assert next(iter(read_rollouts(file).values()))["judge"] == 1.0
    (tmp_path / "p.judge.jsonl").write_text(json.dumps({**verdict, "answer": "Rome"}) + "\n", "utf-8")
    assert "judge" not in next(iter(read_rollouts(file).values()))


def test_unknown_scorers_have_the_nearest_name() -> None:
    with pytest.raises(UserError, match="did you mean 'search-r1'"):
        scorers_of("search_r1")
    with pytest.raises(UserError, match="no scorer"):
        scorers_of(" , ")
