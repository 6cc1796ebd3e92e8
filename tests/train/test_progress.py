"""What a person sees: one live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from mempo.train.progress import StageProgress


def shown(steps: int, first: int = 0, terminal: bool = False, metrics: dict[str, float | None] | None = None) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=100, legacy_windows=False)
    with StageProgress(console, "rl", steps, ("score", "em"), first) as progress:
        for done in range(first + 1, steps + 1):
            progress.step(done, metrics or {"score": 0.5, "em": None, "other": 3.0})
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_a_file_gets_plain_lines_with_the_chosen_measures() -> None:
    lines = shown(3).splitlines()
    assert [line.split("  ")[0] for line in lines] == ["rl 1/3", "rl 2/3", "rl 3/3"]
    assert all("score 0.5" in line for line in lines)
    assert not any("other" in line or "em" in line or "\x1b" in line for line in lines)


def test_a_long_stage_says_something_ten_times() -> None:
    lines = shown(205).splitlines()
    assert [line.split()[1] for line in lines] == [f"{n}/205" for n in (*range(20, 205, 20), 205)]


def test_a_measure_of_zero_is_shown_and_an_unknown_one_is_not() -> None:
    assert "em 0" in shown(1, metrics={"em": 0.0})
    assert "em" not in shown(1, metrics={"em": None})


def test_a_resumed_stage_goes_on_counting() -> None:
    assert [line.split()[1] for line in shown(6, first=3).splitlines()] == ["4/6", "5/6", "6/6"]
    assert "3/3" in shown(3, first=3, terminal=True)  # nothing was left to do, and the bar is full


def test_a_terminal_gets_a_bar() -> None:
    text = shown(4, terminal=True)
    assert "4/4" in text
    assert "score 0.5" in text
    assert "\x1b" in text


def test_an_error_leaves_the_terminal_in_order() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100, legacy_windows=False)
    with pytest.raises(KeyError), StageProgress(console, "rl", 4, ()):
        raise KeyError
    assert console.file.getvalue().rstrip().endswith("\x1b[?25h")  # type: ignore[attr-defined] - the cursor is back
