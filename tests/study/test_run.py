"""A study as a whole: what is done is not done again, and what fails does not end the rest."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

import mempo.study.run
import mempo.train.rl
from mempo.cli.main import app
from mempo.errors import UserError
from mempo.storage.files import read_lines
from mempo.study.plan import Task
from mempo.study.record import Record
from mempo.study.run import StudyOptions, run_study
from mempo.study.work import Failure
from tests.study.small import a_record, study_file
from tests.train.small import assert_same_weights, metrics
from tests.train.test_resume import Killed, kill_after


class Told:
    """Takes the place of the work: remembers what it was asked for."""

    def __init__(self, fails: Callable[[Task], bool] = lambda task: False) -> None:
        self.fails = fails
        self.asked: list[str] = []

    def __call__(self, task: Task) -> Record | Failure:
        self.asked.append(task.title)
        if self.fails(task):
            return Failure("the disk is full")
        em = 0.5 if task.arm == "outcome" else 0.7
        task.folder.mkdir(parents=True)
        return a_record({"2": em}, key=task.key, arm=task.arm, start=task.start, seed=task.seed, rl_seed=task.rl_seed)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    work = Told()
    monkeypatch.setattr(mempo.study.run, "work", work)
    return work


def study(folder: Path, *settings: str, workers: int = 1, **more: Any) -> str:
    """What a study prints."""
    parts = more.pop("parts", {"seeds": [0, 1]})
    console = Console(file=io.StringIO(), width=120)
    options = StudyOptions(out=folder / "out", workers=workers, settings=settings, **more)
    run_study(study_file(folder, **parts), options, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_what_is_done_is_not_done_again(tmp_path: Path, told: Told) -> None:
    first = study(tmp_path)
    assert "6 runs, 0 of them there already" in first
    assert told.asked == [
        *("start start, seed 0", "outcome from start, seed 0", "both from start, seed 0"),
        *("start start, seed 1", "outcome from start, seed 1", "both from start, seed 1"),
    ]
    told.asked.clear()
    again = study(tmp_path)
    assert told.asked == []
    assert "6 of them there already" in again
    assert "+20.0 [+20.0, +20.0]" in again
    study(tmp_path, "rl.steps=3")
    assert [title for title in told.asked if title.startswith("start")] == []  # the starts are the same
    assert len(told.asked) == 4
    told.asked.clear()
    study(tmp_path, parts={"seeds": [0, 1, 2]}, only=("both",))
    assert told.asked == ["start start, seed 2", "both from start, seed 2"]
    page = (tmp_path / "out" / "tables.md").read_text("utf-8")
    assert "| both | 3 | 70.0 (70–70) |" in page
    assert "| outcome | 2 | 50.0 (50–50) |" in page  # not run now, and there all the same
    assert (tmp_path / "out" / "exact-match.png").stat().st_size > 1000


def test_a_failed_start_takes_its_arms_with_it_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Told(lambda task: task.arm is None and task.seed == 0)
    monkeypatch.setattr(mempo.study.run, "work", broken)
    with pytest.raises(UserError, match=r"3 of 6 runs did not end; the first, start start, seed 0: the disk is full"):
        study(tmp_path)
    assert [line["seed"] for line in read_lines(tmp_path / "out" / "results.jsonl")] == [1, 1, 1]
    assert (tmp_path / "out" / "tables.md").is_file()
    whole = Told()
    monkeypatch.setattr(mempo.study.run, "work", whole)
    study(tmp_path)
    assert [title.rpartition(" ")[2] for title in whole.asked] == ["0"] * 3


def test_a_dry_run_lists_and_does_nothing(tmp_path: Path, told: Told) -> None:
    text = study(tmp_path, dry_run=True)
    assert "both from start, seed 1: to do" in text
    assert "6 runs, 6 to do, 1 at a time" in text
    assert "not known before" in text
    assert not (tmp_path / "out").exists()
    study(tmp_path, parts={"seeds": [0]})
    text = study(tmp_path, dry_run=True)
    assert "both from start, seed 0: there already" in text
    assert "both from start, seed 1: to do, about 10 s" in text
    assert "6 runs, 3 to do" in text
    assert "expected: 0 CPU minutes" in text  # three of ten seconds


def test_a_foreign_folder_is_left_alone(tmp_path: Path, told: Told) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("mine", encoding="utf-8")
    with pytest.raises(UserError, match="do not belong to a study"):
        study(tmp_path)
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["thesis.tex"]
    assert told.asked == []


def test_the_command_line(tmp_path: Path) -> None:
    said = CliRunner().invoke(app, ["study", study_file(tmp_path), "--dry-run", "--out", str(tmp_path / "out")])
    assert said.exit_code == 0, said.output
    assert "3 runs, 3 to do" in said.output
    said = CliRunner().invoke(app, ["study", study_file(tmp_path, arms={"a": ["rl.stepps=1"]}), "--dry-run"])
    assert isinstance(said.exception, UserError)
    assert "did you mean 'steps'" in str(said.exception)


@pytest.mark.slow
def test_a_study_of_real_runs_goes_on_after_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "unbroken").mkdir()
    parts = {"seeds": [0]}
    study(tmp_path / "unbroken", parts=parts)
    with monkeypatch.context() as patch:
        kill_after(patch, mempo.train.rl, 1)
        with pytest.raises(Killed):
            study(tmp_path / "broken", parts=parts)
    study(tmp_path / "broken", parts=parts)
    whole, mended = (tmp_path / name / "out" for name in ("unbroken", "broken"))
    lines = {line["arm"]: line for line in read_lines(mended / "results.jsonl")}
    assert {arm: line["resumed"] for arm, line in lines.items()} == {None: False, "outcome": True, "both": False}
    assert all(line["seconds"]["cpu"] > 0 for line in lines.values())
    assert lines["both"]["versions"]["torch"]
    assert lines["both"]["curve"]["step"] == [1, 2]
    assert set(lines["both"]["objectives_right"]) == {"1", "2"}
    assert lines["both"]["start-check"]["rollouts"] == 8
    for file in sorted((whole / "runs").glob("*/final")):
        assert_same_weights(file, mended / "runs" / file.parent.name / "final")
    start, outcome, both = (mended / "runs" / lines[arm]["folder"] for arm in (None, "outcome", "both"))
    for arm in (outcome, both):
        assert metrics(arm, "sft") == []  # it is the start's
        assert (arm / "evaluation-start.json").read_bytes() == (start / "evaluation-start.json").read_bytes()


@pytest.mark.slow
def test_two_workers_do_what_one_does(tmp_path: Path) -> None:
    for workers in (1, 2):
        (tmp_path / str(workers)).mkdir()
        study(tmp_path / str(workers), workers=workers, parts={"seeds": [0]})
    one, two = (tmp_path / name / "out" / "runs" for name in ("1", "2"))
    found = sorted(one.glob("*/final"))
    assert len(found) == 3
    for file in found:
        assert_same_weights(file, two / file.parent.name / "final")
