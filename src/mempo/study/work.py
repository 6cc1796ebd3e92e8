"""One run of a study, in whatever process it is given to."""

from __future__ import annotations

import contextlib
import time
import traceback
from dataclasses import dataclass

from rich.console import Console

from mempo.errors import UserError
from mempo.run.train import train
from mempo.study.plan import Task
from mempo.study.record import Record, record_of


@dataclass(frozen=True)
class Failure:
    """Why a run did not end, in one line."""

    reason: str


def work(task: Task) -> Record | Failure:
    """Make the run, or resume it from its checkpoint; its output goes into `FOLDER.log` beside its folder."""
    folder = task.folder
    log = folder.with_name(f"{folder.name}.log")
    log.parent.mkdir(parents=True, exist_ok=True)
    began, cpu = time.monotonic(), time.process_time()
    resumed = (folder / "config.yaml").is_file()
    with log.open("a", encoding="utf-8") as file, contextlib.redirect_stderr(file):
        try:
            if (folder / "final").is_dir():  # ended, and was stopped before it was written down
                return record_of(task, None, resumed=True)
            train(task.resolved, resumed, Console(file=file, width=120, force_terminal=False))
            seconds = {"cpu": time.process_time() - cpu, "wall": time.monotonic() - began}
            return record_of(task, seconds, resumed)
        except UserError as error:
            print(f"failed: {error}", file=file)
            return Failure(str(error))
        except Exception as error:  # one run that fails must not end the others
            traceback.print_exc()
            return Failure(f"{type(error).__name__}: {' '.join(str(error).split())} (the whole of it is in {log})")
