"""What a person sees of a long job: one live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.console import Console

from mempo.progress import Progress, stages


class Time:
    """A clock that goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def screen(terminal: bool = False, width: int = 80, **options: Any) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=width, legacy_windows=False, **options)


def text_of(console: Console) -> str:
    return console.file.getvalue()  # type: ignore[attr-defined]


def lines_of(steps: int, seconds_each: float, history: bool = False, first: int = 0) -> list[str]:
    console, clock = screen(), Time()
    with Progress(console, "rl", steps, "step", first, history, clock) as progress:
        for done in range(first + 1, steps + 1):
            clock.now += seconds_each
            progress.step(done, f"em {done}")
    return text_of(console).splitlines()


def test_a_line_has_rate_time_left_and_the_last_measures() -> None:
    assert lines_of(4, 30) == [
        "rl 1/4  30 s/step  0:01:30 left  em 1",
        "rl 2/4  30 s/step  0:01:00 left  em 2",
        "rl 3/4  30 s/step  0:00:30 left  em 3",
        "rl 4/4  30 s/step  0:02:00 in all  em 4",
    ]


def test_quick_steps_are_counted_by_the_second_and_told_every_ten_seconds() -> None:
    lines = lines_of(100, 0.25)
    assert lines[0] == "rl 40/100  4 steps/s  0:00:15 left  em 40"
    assert [line.split()[1] for line in lines] == ["40/100", "80/100", "100/100"]


def test_a_job_of_hours_says_something_once_a_minute() -> None:
    lines = lines_of(36_000, 1)
    assert 500 < len(lines) < 800
    told = [int(line.split()[1].split("/")[0]) for line in lines]
    assert told[:3] == [10, 20, 30]
    assert told[-2] - told[-3] == 60


def test_a_short_job_says_nothing_unless_its_lines_are_a_history() -> None:
    assert lines_of(3, 0.1) == []
    assert lines_of(3, 0.1, history=True) == ["rl 3/3  10 steps/s  0:00:00 in all  em 3"]


def test_the_rate_of_a_resumed_job_is_that_of_this_process() -> None:
    assert lines_of(6, 30, first=3)[0] == "rl 4/6  30 s/step  0:01:00 left  em 4"


def test_the_rate_follows_a_job_whose_steps_grow_longer() -> None:
    console, clock = screen(), Time()
    with Progress(console, "rl", 200, "step", clock=clock) as progress:
        for done in range(1, 151):
            clock.now += 1 if done <= 100 else 9
            progress.step(done)
    assert "9 s/step  0:07:30 left" in text_of(console).splitlines()[-1]


def test_a_line_says_what_a_step_is_at() -> None:
    console, clock = screen(), Time()
    with Progress(console, "rl", 4, "step", clock=clock) as progress:
        progress.part("rollouts 3/8, 5 in flight, 9 turns")
        assert text_of(console) == ""
        clock.now = 12
        progress.part("rollouts 4/8, 4 in flight, 12 turns")
        clock.now = 24
        progress.step(1, "em 0.5")
        clock.now = 36
        progress.part("scoring")
    assert text_of(console).splitlines() == [
        "rl 0/4  rollouts 4/8, 4 in flight, 12 turns",
        "rl 1/4  24 s/step  0:01:12 left  em 0.5",
        "rl 1/4  24 s/step  0:01:00 left  em 0.5  scoring",
    ]


@pytest.mark.parametrize("width", [30, 80])
def test_a_terminal_gets_one_line_however_narrow(width: int) -> None:
    console = screen(terminal=True, width=width)
    with Progress(console, "rl", 4, "step") as progress:
        for done in range(5):
            progress.step(done, "score 0.5  em 0.25  P(mem) 0.31  note 35  turns 4.1  " * 3)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text_of(console))
    assert "4/4" in shown
    assert "\x1b" in text_of(console)
    drawn = [line for line in re.split(r"[\r\n]+", shown) if line.strip()]
    assert all(len(line) <= width and "rl" in line for line in drawn)


def test_a_terminal_keeps_the_lines_of_a_history() -> None:
    clock = Time()
    console = screen(terminal=True)
    with Progress(console, "rl", 2, "step", history=True, clock=clock) as progress:
        for done in (1, 2):
            clock.now += 30
            progress.step(done, f"em {done}")
    assert "rl 1/2  30 s/step  0:00:30 left  em 1\n" in text_of(console).replace("\r", "")


@pytest.mark.parametrize("console", [screen(terminal=True, quiet=True), screen(quiet=True)])
def test_a_quiet_console_shows_nothing(console: Console) -> None:
    with Progress(console, "rl", 2, "step", history=True) as progress:
        progress.part("scoring")
        progress.step(2)
    assert text_of(console) == ""


def test_forced_colors_draw_nothing_over() -> None:
    """As with FORCE_COLOR in a pipe: a terminal by its colors alone."""
    console, clock = screen(terminal=True, force_interactive=False), Time()
    with Progress(console, "rl", 2, "step", clock=clock) as progress:
        clock.now = 20
        progress.step(2)
    assert text_of(console) == "rl 2/2  10 s/step  0:00:20 in all\n"


def test_brackets_in_a_name_are_no_markup() -> None:
    console, clock = screen(), Time()
    with Progress(console, "window(2) [bold]", 1, "rollout", clock=clock) as progress:
        clock.now = 12
        progress.step(1)
    assert text_of(console).startswith("window(2) [bold] 1/1")


def test_an_error_leaves_the_terminal_in_order() -> None:
    console = screen(terminal=True)
    with pytest.raises(KeyError), Progress(console, "rl", 4, "step"):
        raise KeyError
    assert text_of(console).rstrip().endswith("\x1b[?25h")  # the cursor is back


def test_stages_follow_each_other() -> None:
    console = screen(terminal=True)
    with stages(console, "document") as tell:
        for stage, total in (("read corpus", 1), ("encode", 7)):
            tell(stage, 0, total)
            tell(stage, total, total)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text_of(console))
    assert "read corpus  0:00:00" in shown
    assert "encode 7/7" in shown
    assert shown.index("read corpus") < shown.index("encode")
