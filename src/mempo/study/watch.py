"""What runs that are at work have come to, said now and then: an SFT of minutes should not look as if it hung."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from mempo.errors import UserError
from mempo.storage.run_folder import RunFolder
from mempo.study.plan import Task

EVERY_S = 20.0


class Watch:
    """While it is entered, `say` gets a line every `every_s` seconds for each run that has done steps."""

    def __init__(self, say: Callable[[str], None], every_s: float = EVERY_S) -> None:
        self._say, self._every_s = say, every_s
        self._at_work: dict[str, Task] = {}
        self._said: dict[str, str] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def begun(self, task: Task) -> None:
        self._at_work[task.key] = task

    def done(self, task: Task) -> None:
        self._at_work.pop(task.key, None)

    def look(self) -> None:
        """Say what is new."""
        for task in list(self._at_work.values()):
            line = newest(task)
            if line is not None and self._said.get(task.key) != line:
                self._said[task.key] = line
                self._say(f"{task.title}: {line}")

    def _run(self) -> None:
        while not self._ended.wait(self._every_s):
            self.look()

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()


def newest(task: Task) -> str | None:
    """The last step of a run, such as `sft 300/1100, loss 0.08`; None: it has done none."""
    lines: list[dict[str, Any]] = []
    with contextlib.suppress(UserError, OSError):  # a line that is half written is read next time
        lines = RunFolder(task.folder).metrics()
    return _step(lines[-1], task) if lines else None


def _step(line: Mapping[str, Any], task: Task) -> str:
    stage, loss, em = line["stage"], line.get("loss"), line.get("em")
    said = f"{stage} {line['step']}/{getattr(task.resolved.config, stage).steps}"
    if stage == "sft":
        return said if loss is None else f"{said}, loss {loss:.2g}"
    return said if em is None else f"{said}, {100 * em:.0f} % of its rollouts all right"
