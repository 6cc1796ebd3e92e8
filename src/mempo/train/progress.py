"""What a person sees while a stage runs: one live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class StageProgress:
    """Progress of one stage. `shown` picks the measures worth a glance."""

    def __init__(self, console: Console, stage: str, steps: int, shown: Iterable[str], first_step: int = 0) -> None:
        self._console, self._stage, self._steps, self._shown = console, stage, steps, tuple(shown)
        self._every = max(steps // 10, 1)
        self._began = time.monotonic()
        self._progress = None
        if console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._progress = Progress(*columns, TextColumn("{task.fields[measures]}"), console=console)
            self._task = self._progress.add_task(stage, total=steps, completed=first_step, measures="")

    def __enter__(self) -> StageProgress:
        if self._progress:
            self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._progress:
            self._progress.stop()

    def step(self, done: int, metrics: Mapping[str, float | None]) -> None:
        """`done` steps are done, the last of them with these measures."""
        found = ((name, metrics.get(name)) for name in self._shown)
        measures = "  ".join(f"{name} {value:.3g}" for name, value in found if value is not None)
        if self._progress:
            self._progress.update(self._task, completed=done, measures=measures)
        elif done % self._every == 0 or done == self._steps:
            seconds = time.monotonic() - self._began
            self._console.print(
                f"{self._stage} {done}/{self._steps}  {measures}  {seconds:.0f}s", highlight=False, soft_wrap=True
            )
