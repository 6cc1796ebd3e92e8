"""What a person sees of a long job: one live line on a terminal, elsewhere a plain line now and then."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task
from rich.progress import Progress as Bar
from rich.table import Column
from rich.text import Text

FIRST_LINES_S, LATER_LINES_S = 10.0, 60.0
"""Seconds between two plain lines, in a job that has just begun and in one that has gone on for an hour."""


class Progress:
    """How far a job is: `name done/total`, its rate, the time left, and a note. It may be entered once.

    `unit` is what is counted, in the singular; empty: nothing is, and the seconds are shown. `done`: what was done
    before this process took the job up. With `history` its lines are kept: a terminal prints them above the live one,
    and the last is printed however short the job was. A console that is quiet shows nothing.
    """

    def __init__(
        self,
        console: Console,
        name: str,
        total: float,
        unit: str,
        done: float = 0,
        history: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console, self._name, self._unit, self._clock = console, name, unit, clock
        self._total, self._done, self._note, self._part = total, done, "", ""
        self._began = self._told_at = clock()
        self._told = done
        # The rate is that of the last fifth, so that it follows a job whose steps grow longer.
        self._marks = deque([(self._began, done)], maxlen=max(20, int(total) // 5))
        live = console.is_terminal and console.is_interactive
        self._history, self._lines = history, history or not live
        self._bar: Bar | None = None
        if live:
            bar = Bar(BarColumn(12), _Line(lambda: self._status(live=True)), console=console, refresh_per_second=4)
            self._task = bar.add_task(name, total=total, completed=done)  # pyright: ignore[reportArgumentType]
            self._bar = bar

    def step(self, done: float, note: str = "") -> None:
        """`done` of the total are done; `note`: the measures of the last, which stay until the next."""
        if done > self._done:
            self._marks.append((self._clock(), done))
        self._done, self._note, self._part = done, note, ""
        if self._bar:
            self._bar.update(self._task, completed=done)
        long_enough = self._history or self._clock() - self._began >= FIRST_LINES_S
        self._tell(at_end=done >= self._total and long_enough)

    def part(self, text: str) -> None:
        """What the step that is under way is at, such as `update 3/8`."""
        self._part = text
        self._tell()

    def _tell(self, at_end: bool = False) -> None:
        now = self._clock()
        every = min(max(FIRST_LINES_S, (now - self._began) / 50), LATER_LINES_S)
        if self._lines and (now - self._told_at >= every or (at_end and self._done > self._told)):
            self._told_at, self._told = now, self._done
            self._console.print(self._status(), highlight=False, markup=False, soft_wrap=True)

    def _status(self, live: bool = False) -> str:
        (first_at, first), (last_at, last) = self._marks[0], self._marks[-1]
        if not self._unit:
            return f"{self._name}  {timedelta(seconds=round(self._clock() - self._began))}"
        parts = [f"{self._name} {_number(self._done)}/{_number(self._total)}"]
        if last > first and last_at > first_at:
            rate = (last - first) / (last_at - first_at)
            left = (self._total - self._done) / rate - (self._clock() - last_at)
            parts.append(f"{rate:.3g} {self._unit}s/s" if rate >= 1 else f"{1 / rate:.3g} s/{self._unit}")
            if self._done < self._total:
                parts.append(f"{timedelta(seconds=round(max(left, 0)))} left")
            else:
                parts.append(f"{timedelta(seconds=round(self._clock() - self._began))} in all")
        said = (self._part or self._note,) if live else (self._note, self._part)
        return "  ".join([*parts, *filter(None, said)])

    def __enter__(self) -> Progress:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._bar:
            self._bar.stop()


class _Line(ProgressColumn):
    """The rest of the live line, in one line however narrow the terminal is."""

    def __init__(self, status: Callable[[], str]) -> None:
        super().__init__(Column(no_wrap=True, overflow="ellipsis"))
        self._status = status

    def render(self, task: Task) -> Text:
        return Text(self._status())


@contextmanager
def stages(console: Console, unit: str) -> Iterator[Callable[[str, int, int], None]]:
    """A job of several stages, one after the other: what is yielded takes (stage, done, total)."""
    shown: dict[str, Progress] = {}

    def tell(stage: str, done: int, total: int) -> None:
        if stage not in shown:
            close()
            # What is done in one go has nothing to count.
            shown[stage] = Progress(console, stage, total, unit if total > 1 else "", done).__enter__()
        shown[stage].step(done)

    def close() -> None:
        for progress in shown.values():
            progress.__exit__(None, None, None)
        shown.clear()

    try:
        yield tell
    finally:
        close()


def _number(count: float) -> str:
    return f"{count:.0f}" if count == int(count) else f"{count:.1f}"


def say(console: Console, line: str, style: str | None = None) -> None:
    """A sentence, as it is: wrapped between words on a terminal, one line elsewhere."""
    console.print(line, highlight=False, markup=False, soft_wrap=not console.is_interactive, style=style)
