"""What is said of runs at work: their last step, once."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from mempo.config import Resolved, resolve
from mempo.storage.run_folder import RunFolder
from mempo.study.plan import Task
from mempo.study.watch import Watch
from tests.study.small import a_task


@pytest.fixture
def task(tmp_path: Path) -> Task:
    config: Resolved = resolve("quickstart", [f"output={tmp_path / 'run'}"])
    return dataclasses.replace(a_task("memory", 0), resolved=config)


def test_the_last_step_of_a_run_at_work_is_said_once(task: Task) -> None:
    said: list[str] = []
    watch = Watch(said.append)
    watch.begun(task)
    watch.look()
    assert said == []  # its folder is not there yet
    task.folder.mkdir()
    run = RunFolder(task.folder)
    run.log("sft", 300, {"loss": 0.123})
    watch.look()
    watch.look()
    assert said == ["memory from plain, seed 0: sft 300/1100, loss 0.12"]
    run.log("rl", 7, {"em": 0.125})
    watch.look()
    assert said[1:] == ["memory from plain, seed 0: rl 7/20, 12 % of its rollouts all right"]
    run.log("rl", 8, {"em": None})
    watch.done(task)
    watch.look()
    assert len(said) == 2


def test_a_line_that_is_half_written_is_left_for_the_next_look(task: Task) -> None:
    said: list[str] = []
    watch = Watch(said.append)
    watch.begun(task)
    task.folder.mkdir()
    (task.folder / "metrics.jsonl").write_text('{"stage": "sft", "st', encoding="utf-8")
    watch.look()
    assert all("sft" not in line for line in said)


def test_it_looks_by_itself_and_ends(task: Task) -> None:
    task.folder.mkdir()
    RunFolder(task.folder).log("sft", 1, {})
    said: list[str] = []
    watch = Watch(said.append, every_s=0.001)
    with watch:
        watch.begun(task)
        while not said:
            pass
    assert said == ["memory from plain, seed 0: sft 1/1100"]
