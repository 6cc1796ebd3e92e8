"""What is shown of runs at work: how much of the study is done, and the last step of each."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from mempo.config import Resolved, resolve
from mempo.storage.run_folder import RunFolder
from mempo.study.plan import Task
from mempo.study.watch import Watch
from tests.study.small import a_task


class Seen:
    """A progress that remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[float, str]] = []

    def step(self, done: float, note: str = "") -> None:
        self.told.append((done, note))


@pytest.fixture
def task(tmp_path: Path) -> Task:
    settings = [f"output={tmp_path / 'run'}", "sft.steps=1100", "rl.steps=100"]
    config: Resolved = resolve("quickstart", settings)
    return dataclasses.replace(a_task("memory", 0), resolved=config)


def watching(seen: Seen, done: int = 0, every_s: float = 10.0) -> Watch:
    return Watch(seen, done, every_s)  # type: ignore[arg-type]


def test_runs_at_work_count_by_their_steps(task: Task) -> None:
    seen = Seen()
    watch = watching(seen, done=2)
    watch.begun(task)
    watch.look()
    assert seen.told == [(2, "")]  # its folder is not there yet
    task.folder.mkdir()
    run = RunFolder(task.folder)
    run.log("sft", 300, {"loss": 0.123})
    watch.look()
    assert seen.told[-1] == (2 + 300 / 1200, "memory from plain, seed 0: sft 300/1100, loss 0.12")
    run.log("rl", 40, {"em": 0.125})
    watch.look()
    assert seen.told[-1] == (2 + 1140 / 1200, "memory from plain, seed 0: rl 40/100, em 0.12")
    watch.done(task, made=True)
    assert seen.told[-1] == (3, "")


def test_a_run_that_begins_from_another_has_no_sft_to_count(task: Task) -> None:
    config = task.resolved.config.model_copy(update={"start": "runs/other"})
    task = dataclasses.replace(task, resolved=dataclasses.replace(task.resolved, config=config))
    task.folder.mkdir()
    RunFolder(task.folder).log("rl", 25, {"em": None})
    seen = Seen()
    watch = watching(seen)
    watch.begun(task)
    watch.look()
    assert seen.told == [(0.25, "memory from plain, seed 0: rl 25/100")]


def test_a_run_that_failed_is_not_done(task: Task) -> None:
    seen = Seen()
    watch = watching(seen, done=1)
    watch.begun(task)
    watch.done(task, made=False)
    assert seen.told == [(1, "")]


def test_a_line_that_is_half_written_is_left_for_the_next_look(task: Task) -> None:
    seen = Seen()
    watch = watching(seen)
    watch.begun(task)
    task.folder.mkdir()
    (task.folder / "metrics.jsonl").write_text('{"stage": "sft", "st', encoding="utf-8")
    watch.look()
    assert seen.told == [(0, "")]


def test_it_looks_by_itself_and_ends(task: Task) -> None:
    task.folder.mkdir()
    RunFolder(task.folder).log("sft", 1, {})
    seen = Seen()
    watch = watching(seen, every_s=0.001)
    with watch:
        watch.begun(task)
        while not any(note for _, note in seen.told):
            pass
    assert seen.told[-1] == (1 / 1200, "memory from plain, seed 0: sft 1/1100")
