"""A table of texts on a terminal: it fits, whatever is in it, and loses nothing."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from mempo.evaluate.grid import Grid

HEADERS = ("k", "agent", "EM", "total tokens", "peak context", "a measure of several words", "errors")
ROWS = [
    ["2", "memory", "66.0% [57–75]", "12345", "1234", "0.5", "0"],
    ["10", "window(3)", "100.0% [90–100]", "1234567", "99", "–", "12"],
]


def shown(grid: Grid, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(grid)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", [30, 45, 60, 80, 120])
def test_every_cell_is_there_and_no_line_is_too_long(width: int) -> None:
    lines = shown(Grid(HEADERS, ROWS, words=("agent",), keys=2), width)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert "…" not in text
    for cell in [cell for row in ROWS for cell in row]:
        assert cell in text


def test_a_part_begins_with_the_columns_that_name_a_row() -> None:
    lines = shown(Grid(HEADERS, ROWS, words=("agent",), keys=2), 45)
    named = [line for line in lines if "window(3)" in line]
    assert len(named) > 1
    assert all(line.split()[:2] == ["10", "window(3)"] for line in named)


def test_a_header_takes_lines_before_columns_are_pressed() -> None:
    lines = shown(Grid(HEADERS, ROWS, words=("agent",), keys=2), 80)
    assert not any("total tokens" in line for line in lines)
    assert [line for line in lines if "tokens" in line] != []
    assert len([line for line in lines if "window(3)" in line]) == 1


def test_texts_from_outside_stay_texts() -> None:
    grid = Grid(("agent", "n"), [["[red]x[/red]\x1b[31m", "1"]], words=("agent",), title="a [b]\x07")
    text = "\n".join(shown(grid, 80))
    assert "[red]x[/red]?[31m" in text
    assert "a [b]?" in text
    assert "\x1b" not in text


def test_rules_stand_between_groups() -> None:
    lines = shown(Grid(("k", "n"), [["1", "5"], ["2", "5"], ["2", "6"]], rules=(1,)), 80)
    assert [line.strip() for line in lines] == ["k  n", "────", "1  5", "", "2  5", "2  6"]
