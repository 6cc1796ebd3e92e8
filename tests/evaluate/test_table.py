"""The table: one line per number of objectives and policy, and a dash for what is not known."""

from __future__ import annotations

import io

from rich.console import Console

from mempo.evaluate.report import COLUMNS, ByObjectives, cells, evaluation_table
from mempo.rewards.rollout_metrics import aggregate

START: ByObjectives = {2: {"questions": 50.0, "em": 0.125, "f1": 0.5, "memory/p_mem_raw": None, "errors": 0.0}}
END: ByObjectives = {
    2: {"questions": 50.0, "scored_questions": 37.0, "em": 1.0, "f1": 1.0},
    3: {"questions": 40.0, "em": 0.0},
}


def drawn(*results: tuple[str, ByObjectives], width: int = 80) -> list[list[str]]:
    console = Console(file=io.StringIO(), width=width)
    console.print(evaluation_table(results, "held-out questions, greedy, seed 0"))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[0].strip() == "held-out questions, greedy, seed 0"
    assert max(map(len, lines)) <= width
    return [line.split() for line in lines[1:] if line.strip()]


def test_policies_stand_below_each_other_by_number_of_objectives() -> None:
    _, header, _, *rows = drawn(("start", START), ("after RL", END), width=90)
    assert header[:5] == ["k", "n", "policy", "EM", "F1"]
    assert [row[: 1 - len(COLUMNS)] for row in rows] == [
        ["2", "50", "start", "12.5%"],
        ["2", "37", "of", "50", "after", "RL", "100.0%"],
        ["3", "40", "after", "RL", "0.0%"],
    ]


def test_what_is_not_known_is_a_dash_and_zero_is_zero() -> None:
    by_header = dict(zip((header for _, header, _ in COLUMNS), cells(START[2]), strict=True))
    assert by_header["P(mem)"] == "–"
    assert by_header["errors"] == "0"
    assert by_header["turns"] == "–"


def test_every_column_is_a_measure_that_exists() -> None:
    known = aggregate([], [])
    assert {name for name, _, _ in COLUMNS} <= set(known)
