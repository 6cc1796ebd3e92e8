"""The table of a comparison: rows, intervals, pairs, errors apart; and what every format makes of it."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mempo.evaluate.compare import Asked, Entry, Report, compare
from mempo.evaluate.export import csv_table, latex, markdown, pair_texts
from mempo.evaluate.figures import save_figures
from mempo.evaluate.metrics import objective_means, pass_rate, summarise
from mempo.evaluate.report import report_table, scores_table


def line(question: str, em: float | None, rollout: int = 0, objectives: int = 2, **more: Any) -> dict[str, Any]:
    return {
        "question_id": question,
        "rollout": rollout,
        "objectives": objectives,
        "stop": "answered",
        "is_error": em is None,
        "em": em,
        "f1": em,
        "score": em,
        "format_ok": True,
        "actions": {"search": 2, "access": 1, "answer": 1},
        "num_turns": 4,
        "note_tokens": [10, 20],
        "total_tokens": 100.0,
        "peak_context_tokens": 40.0 * objectives,
        **more,
    }


def entries() -> list[Entry]:
    memory = [line(f"q{i}", float(i % 4 > 0)) for i in range(8)] + [line("k4", 1.0, objectives=4)]
    react = [line(f"q{i}", float(i % 4 > 2)) for i in range(8)] + [line("lost", None)]
    return [Entry("memory", memory), Entry("react", react)]


def test_rows_by_objectives_with_errors_apart() -> None:
    report = compare(entries())
    assert [(row.objectives, row.label, row.n, row.rollouts, row.errors) for row in report.rows] == [
        (2, "memory", "8", 8, 0),
        (2, "react", "8 of 9", 9, 1),
        (4, "memory", "1", 1, 0),
    ]
    memory, react, four = report.rows
    assert (memory.estimates["em"].mean, react.estimates["em"].mean) == (0.75, 0.25)  # the lost one is no 0
    assert memory.estimates["em"].low == pytest.approx(0.4093, abs=1e-4)
    assert four.estimates["em"].low == pytest.approx(0.2065, abs=1e-4)  # one question of one right
    assert memory.estimates["total_tokens"].low is None  # all alike
    assert memory.estimates["tool_calls"].mean == 3
    assert memory.estimates["note_tokens"].mean == 15
    (pair,) = [pair for pair in report.pairs if pair.metric == "em"]
    assert (pair.first, pair.second, pair.found.difference, pair.found.worse) == ("memory", "react", -0.5, 4)
    assert "dependency" not in [column.name for column in report.columns]  # nobody knows it


def test_means_are_by_question_first_and_pass_at_k_is_shown() -> None:
    lines = [line("a", 1.0, n) for n in range(3)] + [line("b", 0.0, 0), line("b", None, 1), line("b", None, 2)]
    (row,) = compare([Entry("x", lines)]).rows
    assert row.estimates["em"].mean == 0.5
    assert (row.samples, row.pass_k, row.pass_questions) == (3, 1.0, 1)
    assert pass_rate(lines, 1) == (0.5, 2)
    measures = summarise([item | EXTRA for item in lines])
    assert (measures["em"], measures["errors"]) == (0.5, 2.0)
    assert (measures["pass@3"], measures["pass@3_questions"]) == (1.0, 1.0)


def half_failed() -> list[dict[str, Any]]:
    """Ten questions of three samples: five right every time, five wrong twice with a sample that failed."""
    right = [line(f"r{q}", 1.0, n) for q in range(5) for n in range(3)]
    return right + [line(f"w{q}", None if n == 2 else 0.0, n) for q in range(5) for n in range(3)]


def test_pass_at_k_says_on_how_many_questions_it_rests() -> None:
    report = compare([Entry("x", half_failed())])
    (row,) = report.rows
    assert (row.n, row.samples, row.pass_k, row.pass_questions) == ("10", 3, 1.0, 5)
    assert row.estimates["em"].mean == 0.5
    said = "k = 2: x: pass@3 rests on 5 of 10 questions with 3 scored samples; pass@2 is 50.0% on 10 questions"
    assert report.remarks == (said,)
    head, _, cells, *_ = markdown(report).splitlines()
    assert "| pass@3 |" in head
    assert "| 100.0% (n 5 of 10) |" in cells
    (numbers,) = csv.DictReader(io.StringIO(csv_table(report)))
    assert (numbers["samples"], numbers["pass_k"], numbers["pass_questions"], numbers["asked"]) == (
        "3",
        "1.0",
        "5",
        "10",
    )
    assert r"100.0\% (n 5 of 10)" in latex(report)
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(report_table(report, ""))
    shown = console.export_text()
    assert "pass@3" in shown
    assert "100.0% (n 5 of 10)" in shown


def test_k_is_what_was_asked_for() -> None:
    lines = [line("a", 1.0, n) for n in range(2)]  # the third was never played
    (row,) = compare([Entry("x", lines, Asked({2: 4}, samples=3))]).rows
    assert (row.n, row.samples, row.pass_k, row.pass_questions) == ("1 of 4", 3, None, 0)
    mixed = compare([Entry("x", half_failed()), Entry("one", [line("r0", 1.0)])])
    assert "| pass@k |" in markdown(mixed)
    assert "| k=3: 100.0% (n 5 of 10) |" in markdown(mixed)
    assert "| – | 0 |" in markdown(mixed), "one sample a question has no pass@k"


def test_n_is_seen_where_it_is_smaller_than_what_was_asked() -> None:
    lines = [line(f"q{i}", None if i % 2 else 1.0, gold=["g"]) for i in range(6)]
    report = compare([Entry("x", lines)])
    assert "| x | 3 of 6 | 100.0% [43.9–100.0] |" in markdown(report)
    assert "x & 3 of 6 &" in latex(report)
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(report_table(report, ""))
    console.print(scores_table(compare([Entry("x", lines)], ["mem1/f1"]), ["mem1/f1"]))
    assert console.export_text().count("3 of 6") == 2
    (numbers,) = csv.DictReader(io.StringIO(csv_table(report)))
    assert (numbers["questions"], numbers["asked"]) == ("3", "6")


def test_what_was_asked_and_never_played_is_seen() -> None:
    report = compare([Entry("x", [line("a", 1.0)], Asked({2: 1, 4: 50}, samples=1))])
    assert [(row.objectives, row.n, row.estimates["em"].mean) for row in report.rows] == [
        (2, "1", 1.0),
        (4, "0 of 50", None),
    ]
    assert "| 4 | x | 0 of 50 | – | – |" in markdown(report)


def test_a_measure_that_rests_on_fewer_questions_is_said() -> None:
    lines = [line(f"q{i}", 1.0, judge=None if i else 1.0, score=None if i == 2 else 1.0) for i in range(3)]
    assert compare([Entry("x", lines)]).remarks == (
        "k = 2: x: the score rests on 2 of 3 questions",
        "k = 2: x: the judge rests on 1 of 3 questions",
    )


def test_questions_without_a_gold_answer_are_said() -> None:
    unknown = [line(f"q{i}", None, gold=None) | {"is_error": False} for i in range(3)]
    report = compare([Entry("x", unknown)])
    assert report.remarks == ("x: no question has a gold answer, so EM and F1 are not known",)
    report = compare([Entry("x", [*unknown, line("q9", 1.0, gold=["g"])])])
    assert report.remarks == ("x: 3 of 4 rollouts answer questions without a gold answer and are not in EM and F1",)
    assert report.rows[0].n == "1 of 4"


EXTRA: dict[str, Any] = {
    **dict.fromkeys(("sub_em", "mean_em", "mean_f1", "generated_tokens", "processed_tokens")),
    "tool_errors": 0,
    "violations": {},
    "outcomes": {},
    "note_statuses": {},
    "notes": [],
}


def test_places_of_objectives() -> None:
    lines = [
        line("a", 0.0, objective_em=[1.0, 0.0]),
        line("a", 0.0, 1, objective_em=[0.0, 0.0]),
        line("b", 1.0, objective_em=[1.0, 1.0]),
    ]
    assert objective_means(lines, "objective_em") == [0.75, 0.5]


def test_runs_without_a_common_question_say_so() -> None:
    report = compare([Entry("x", [line("a", 1.0)]), Entry("y", [line("b", 1.0)])])
    assert report.remarks == ("2 objectives: x and y have no scored question in common",)
    assert pair_texts(report) == []


HOSTILE = r"a|b_$\x & 50% [red]#{~^}"


def hostile() -> Report:
    first, second = entries()
    return compare([Entry(HOSTILE, first.lines), Entry("=cmd()", second.lines)])


def test_markdown_keeps_its_columns() -> None:
    rows = [text for text in markdown(hostile()).splitlines() if text.startswith("|")]
    bars = [text.replace(r"\|", "").count("|") for text in rows]
    assert len(set(bars)) == 1
    assert r"a\|b\_\$\\x & 50% \[red\]\#\{\~^\}" in rows[2]
    assert "75.0% [40.9–92.9]" in rows[2]


def test_csv_holds_every_number() -> None:
    rows = list(csv.DictReader(io.StringIO(csv_table(hostile()))))
    assert rows[0]["agent"] == HOSTILE
    assert rows[1]["agent"] == "'=cmd()"  # no formula
    assert (float(rows[0]["em"]), float(rows[1]["em"]), rows[1]["errors"]) == (0.75, 0.25, "1")
    assert rows[2]["turns_low"] == ""  # unknown, not 0


def test_latex_escapes_what_means_something_in_it() -> None:
    text = latex(hostile())
    assert r"a|b\_\$\textbackslash{}x \& 50\% [red]\#\{\textasciitilde{}\textasciicircum{}\}" in text
    body = [row for row in text.splitlines() if row.endswith(r"\\")]
    columns = text.split("{tabular}{")[1].split("}")[0]
    assert {row.replace(r"\&", "").count("&") for row in body} == {len(columns) - 1}
    assert text.count(r"\midrule") == 2


def test_the_terminal_shows_labels_as_they_are_and_fits() -> None:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(report_table(compare(entries()), "title [bold]"))
    shown = console.export_text()
    assert "title [bold]" in shown
    assert "75.0% [41–93]" in shown
    assert "…" not in shown
    scored = [Entry("x", [line("a", 1.0) | {"mem1/f1": 1.5}])]
    console.print(scores_table(compare(scored, ["mem1/f1"]), ["mem1/f1"]))
    assert "1.50" in console.export_text()


def test_rollouts_without_a_score_are_in_no_estimate_and_said() -> None:
    silent = [
        line("q0", 1.0, 1, score=None, gold="Paris"),
        line("q9", 1.0, score=None, gold="Paris", unscored="custom"),
    ]
    alone, mixed = entries()[0].lines, [*entries()[0].lines, *silent]
    pure, report = compare([Entry("a", alone)]), compare([Entry("a", mixed)])
    assert report.rows[0].estimates == pure.rows[0].estimates
    assert (report.rows[0].questions, report.rows[0].rollouts) == (pure.rows[0].questions, 10)
    assert report.remarks == (
        "k = 2: a: 2 rollouts without a score are in no average",
        "k = 2: a: pass@2 rests on 0 of 9 questions with 2 scored samples",
    )
    assert pure.remarks == ()


def test_pairs_in_words() -> None:
    (text,) = pair_texts(compare(entries()))
    assert text.startswith("k = 2: react − memory: EM -50.0 [")
    assert "p = 0.12" in text  # 4 differences of one sign: 2 of 16 patterns
    assert text.endswith("(8 questions)")


def test_figures_are_drawn_for_one_run_and_for_many(tmp_path: Path) -> None:
    made = save_figures(hostile(), tmp_path)
    assert made == [f"{name}.{kind}" for name in ("quality", "peak", "tokens_quality") for kind in ("png", "svg")]
    assert all((tmp_path / file).stat().st_size > 1000 for file in made)
    assert (tmp_path / "peak.png").read_bytes().startswith(b"\x89PNG")
    nothing = compare([Entry("x", [{"question_id": "a", "objectives": 1, "is_error": True}])])
    assert save_figures(nothing, tmp_path / "none") == []
