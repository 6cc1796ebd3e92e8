"""What runs that are at work have come to, shown now and then: an SFT of minutes should not look as if it hung."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from mempo.errors import UserError
from mempo.progress import Progress
from mempo.storage.run_folder import RunFolder
from mempo.study.plan import Task

EVERY_S = 10.0


class Watch:
    """While it is entered, `progress` learns every `every_s` seconds how far the runs are. `done`: already there."""

    def __init__(self, progress: Progress, done: int, every_s: float = EVERY_S) -> None:
        self._progress, self._done, self._every_s = progress, done, every_s
        self._at_work: dict[str, Task] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def begun(self, task: Task) -> None:
        self._at_work[task.key] = task

    def done(self, task: Task, made: bool) -> None:
        """The run ended; `made`: as it should."""
        self._at_work.pop(task.key, None)
        self._done += made
        self.look()

    def look(self) -> None:
        found = [(task, line) for task in list(self._at_work.values()) if (line := newest(task)) is not None]
        under_way = sum(_share(line, task) for task, line in found)
        note = "; ".join(f"{task.title}: {_said(line, task)}" for task, line in found)
        self._progress.step(self._done + under_way, note)

    def _run(self) -> None:
        while not self._ended.wait(self._every_s):
            self.look()

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()


def newest(task: Task) -> Mapping[str, Any] | None:
    """The measures of a run's last step; None: it has done none."""
    with contextlib.suppress(UserError, OSError):  # a line that is half written is read next time
        lines = RunFolder(task.folder).metrics()
        return lines[-1] if lines else None
    return None


def _share(line: Mapping[str, Any], task: Task) -> float:
    """How much of a run is done, by its steps."""
    config = task.resolved.config
    sft = 0 if config.start else config.sft.steps
    done = line["step"] + (sft if line["stage"] == "rl" else 0)
    return min(done / max(sft + config.rl.steps, 1), 1.0)


def _said(line: Mapping[str, Any], task: Task) -> str:
    """Such as `sft 300/1100, loss 0.08`."""
    stage = line["stage"]
    name = "loss" if stage == "sft" else "em"
    value = line.get(name)
    said = f"{stage} {line['step']}/{getattr(task.resolved.config, stage).steps}"
    return said if value is None else f"{said}, {name} {value:.2g}"
