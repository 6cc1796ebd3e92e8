"""A run of a study can be looked at like any other."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from mempo.cli.study_run import with_report
from mempo.study.work import Failure
from tests.study.small import a_task
from tests.train.small import small


def test_a_run_leaves_its_report(tmp_path: Path) -> None:
    resolved = small(tmp_path / "runs" / "one", "sft.steps=3", "rl.steps=1", "evaluate.questions=1")
    task = dataclasses.replace(a_task("memory", 0), resolved=resolved)
    assert not isinstance(with_report(task), Failure)
    assert "<html" in (task.folder / "report.html").read_text("utf-8")
    assert (task.folder / "commands.jsonl").is_file()


def test_what_keeps_a_report_from_being_written_is_in_the_log(tmp_path: Path) -> None:
    resolved = small(tmp_path / "runs" / "one", "model.path=nowhere", "toy=null")
    task = dataclasses.replace(a_task("memory", 0), resolved=resolved)
    assert isinstance(with_report(task), Failure)
    log = (tmp_path / "runs" / "one.log").read_text("utf-8")
    assert "failed:" in log
    assert "note: report.html was not written" in log
