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


def drawn(*results: tuple[str, ByObjectives]) -> list[list[str]]:
    console = Console(file=io.StringIO(), width=160)
    console.print(evaluation_table(results, "held-out questions, greedy, seed 0"))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[0].strip() == "held-out questions, greedy, seed 0"
    rows = [[cell.strip() for cell in line.strip("│┃").replace("┃", "│").split("│")] for line in lines[1:]]
    return [row for row in rows if len(row) > 3]


def test_policies_stand_below_each_other_by_number_of_objectives() -> None:
    header, *rows = drawn(("start", START), ("after RL", END))
    assert header[:5] == ["objectives", "n", "policy", "EM", "F1"]
    assert [row[:4] for row in rows] == [
        ["2", "50", "start", "12.5%"],
        ["2", "37 of 50", "after RL", "100.0%"],
        ["3", "40", "after RL", "0.0%"],
    ]


def test_what_is_not_known_is_a_dash_and_zero_is_zero() -> None:
    by_header = dict(zip((header for _, header, _ in COLUMNS), cells(START[2]), strict=True))
    assert by_header["P(mem)"] == "–"
    assert by_header["errors"] == "0"
    assert by_header["turns"] == "–"


def test_every_column_is_a_measure_that_exists() -> None:
    known = aggregate([], [])
    assert {name for name, _, _ in COLUMNS} <= set(known)
