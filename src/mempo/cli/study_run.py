"""One run of `mempo study`, which leaves what a run of `mempo train` leaves."""

from __future__ import annotations

from rich.console import Console

from mempo.study.plan import Task
from mempo.study.record import Record
from mempo.study.work import Failure, work
from mempo.view.report import reported


def with_report(task: Task) -> Record | Failure:
    """Make the run, then its report.html; what keeps the report from being written is in the run's log."""
    log = task.folder.with_name(f"{task.folder.name}.log")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file, reported(task.folder, Console(file=file, width=120)):
        return work(task)
