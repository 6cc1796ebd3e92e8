"""The run folder: configuration, metrics, checkpoints that are whole or absent."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from mempo.errors import UserError
from mempo.storage.run_folder import PROMPTS, RunFolder, changed_keys
from tests.storage.test_files import Killed

CONFIG = {"seed": 0, "optim": {"lr": 1e-6, "schedule": "cosine"}, "data": {"objectives": [2, 3], "corpus": None}}


def fill(text: str = "w") -> object:
    def write(folder: Path) -> None:
        (folder / "deep").mkdir()
        (folder / "deep" / "weights").write_text(text)
        (folder / "state.json").write_text("{}")

    return write


def save(run: RunFolder, stage: str, step: int, keep: int = 2) -> Path:
    return run.save_checkpoint(stage, step, fill(), keep)  # type: ignore[arg-type]


def labels(run: RunFolder) -> list[str]:
    return [f"{c.stage}-{c.step}" for c in run.checkpoints()]


# --- configuration -------------------------------------------------------------------------------------------------


def began(path: Path, config: Mapping[str, object] = CONFIG) -> RunFolder:
    """A run with a step."""
    run = RunFolder(path)
    run.begin(config, resume=False)
    run.refuse_other_data({}, resume=False)
    run.log("sft", 1, {})
    return run


def test_the_configuration_is_kept(tmp_path: Path) -> None:
    run = began(tmp_path / "r")
    assert yaml.safe_load((tmp_path / "r" / "config.yaml").read_text()) == CONFIG
    run.begin(CONFIG, resume=True)


def test_a_folder_that_holds_a_run_is_not_taken_twice(tmp_path: Path) -> None:
    run = began(tmp_path / "r")
    with pytest.raises(UserError, match=r"already holds a run; add --resume.*or choose another folder"):
        run.begin(CONFIG, resume=False)


def test_nothing_to_resume_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no run"):
        RunFolder(tmp_path / "r").begin(CONFIG, resume=True)


@pytest.mark.parametrize("resume", [False, True])
def test_a_start_that_failed_before_its_first_step_does_not_block_the_folder(tmp_path: Path, resume: bool) -> None:
    run = RunFolder(tmp_path / "r")
    run.begin(CONFIG, resume=False)
    run.refuse_other_data({"training questions": "a"}, resume=False)
    for name in ("evaluation-start.json", "rollouts/evaluation-start.jsonl", "rollouts/mine.txt", "start/config.json"):
        (run.path / name).parent.mkdir(exist_ok=True)
        (run.path / name).write_text("{}")
    other = {**CONFIG, "seed": 1}
    assert not run.check(other, resume)
    run.begin(other, resume)
    assert run.config() == other
    assert [p.name for p in sorted(run.path.rglob("*")) if p.is_file()] == ["config.yaml", "data.json", "mine.txt"]


@pytest.mark.parametrize("left", [["data.json"], ["data.json", "config.yaml"]])
@pytest.mark.parametrize("resume", [False, True])
def test_a_start_that_was_killed_while_it_began_does_not_block_the_folder(
    tmp_path: Path, left: list[str], resume: bool
) -> None:
    """Whichever of its first two files it came to write."""
    run, whole = RunFolder(tmp_path / "r"), RunFolder(tmp_path / "whole")
    whole.refuse_other_data({PROMPTS: "a"}, resume=False)
    whole.begin(CONFIG, resume=False)
    run.path.mkdir()
    for name in left:
        shutil.copy(whole.path / name, run.path / name)
    if resume and "config.yaml" not in left:
        with pytest.raises(UserError, match="holds no run"):
            run.check(CONFIG, resume)
        return
    run.refuse_other_data({PROMPTS: "a"}, resume=False)
    run.begin(CONFIG, resume)
    assert run.config() == CONFIG


@pytest.mark.parametrize(
    "name", ["config.yaml", "metrics.jsonl", "data.json", "final/x", "rollouts/x", "data/corpus/corpus.jsonl"]
)
def test_files_of_somebody_else_are_not_written_over(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("mine")
    with pytest.raises(UserError, match=f"holds {name.partition('/x')[0]}, which a run would write over"):
        RunFolder(tmp_path).begin(CONFIG, resume=False)
    assert (tmp_path / name).read_text() == "mine"


def test_a_folder_with_other_things_may_hold_a_run(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("mine")
    began(tmp_path)
    assert (tmp_path / "notes.md").read_text() == "mine"


def test_a_resume_with_another_configuration_names_the_keys(tmp_path: Path) -> None:
    run = began(tmp_path / "r")
    other = {"seed": 1, "optim": {"lr": 5e-6, "schedule": "cosine"}, "data": {"objectives": [2, 4]}, "new": {"a": 1}}
    with pytest.raises(UserError) as error:
        run.begin(other, resume=True)
    message = str(error.value)
    for line in (
        "seed: 0 → 1",
        "optim.lr: 1e-06 → 5e-06",
        "data.objectives: [2, 3] → [2, 4]",
        "data.corpus: None → (absent)",
        "new: (absent) → {'a': 1}",
    ):
        assert line in message
    assert "schedule" not in message


def test_what_may_change_changes_and_is_kept_and_output_is_never_compared(tmp_path: Path) -> None:
    run = began(tmp_path / "r", {**CONFIG, "output": "runs/elsewhere"})
    other = {**CONFIG, "optim": {"lr": 1e-5, "schedule": "cosine"}, "output": str(tmp_path / "r")}
    with pytest.raises(UserError, match=r"changed: optim\.lr: 1e-06 → 1e-05$"):
        run.check(other, resume=True)
    run.begin(other, resume=True, may_change=("optim.lr",))
    assert run.config() == other


def test_equal_values_are_no_change() -> None:
    assert changed_keys(CONFIG, {**CONFIG, "data": {"objectives": (2, 3), "corpus": None}}) == []
    assert changed_keys({"a": {}}, {"a": {}}) == []
    assert changed_keys({"a": {"b": 1}}, {"a": 3}) == ["a: {'b': 1} → 3"]


@pytest.mark.parametrize("value", [1e-6, 5e-7, 1e20, 0.1, float("inf"), -3, True, None, "1e-6", "yes", "ü: #", [], {}])
def test_every_value_survives_the_file(tmp_path: Path, value: object) -> None:
    began(tmp_path / "r", {"key": value}).begin({"key": value}, resume=True)


# --- metrics ------------------------------------------------------------------------------------------------------


def test_metrics_are_a_line_a_step(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.log("rl", 1, {"score": 0.5, "nan": float("nan")})
    assert run.metrics() == [{"stage": "rl", "step": 1, "score": 0.5, "nan": None}]


def test_steps_that_will_be_done_again_are_forgotten(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for stage, steps in (("sft", 4), ("rl", 3)):
        for step in range(1, steps + 1):
            run.log(stage, step, {})
    run.forget_after("rl", 2, ("sft", "rl"))
    assert [(m["stage"], m["step"]) for m in run.metrics()] == [
        *[("sft", n) for n in (1, 2, 3, 4)],
        *[("rl", n) for n in (1, 2)],
    ]
    run.forget_after("sft", 3, ("sft", "rl"))
    assert [(m["stage"], m["step"]) for m in run.metrics()] == [("sft", n) for n in (1, 2, 3)]


def test_a_kill_while_forgetting_loses_no_measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunFolder(tmp_path)
    for step in range(1, 6):
        run.log("rl", step, {})

    def dies(*args: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", dies)
        with pytest.raises(Killed):
            run.forget_after("rl", 3, ("sft", "rl"))
    assert [m["step"] for m in run.metrics()] == [1, 2, 3, 4, 5]


# --- checkpoints ---------------------------------------------------------------------------------------------------


def test_checkpoints_come_in_the_order_they_were_made(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for stage, step in (("sft", 5), ("sft", 40), ("rl", 3), ("rl", 20)):
        save(run, stage, step, keep=9)
    assert labels(run) == ["sft-5", "sft-40", "rl-3", "rl-20"]


def test_the_newest_of_each_stage_stay(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for step in (1, 2, 10, 9):
        save(run, "sft", step)
    save(run, "rl", 1)
    assert labels(run) == ["sft-9", "sft-10", "rl-1"]
    assert {p.name for p in (tmp_path / "checkpoints").iterdir()} == {"sft-9", "sft-10", "rl-1"}


def test_a_kill_while_writing_leaves_no_checkpoint_and_keeps_the_others(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    save(run, "rl", 1)

    def dies(folder: Path) -> None:
        (folder / "weights").write_text("half")
        raise Killed

    with pytest.raises(Killed):
        run.save_checkpoint("rl", 2, dies)
    assert labels(run) == ["rl-1"]
    save(run, "rl", 2)
    assert labels(run) == ["rl-1", "rl-2"]


def test_a_hard_kill_while_writing_leaves_no_checkpoint(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    left = tmp_path / "checkpoints" / ".rl-2.tmp-1-ab12"
    left.mkdir(parents=True)
    (left / "weights").write_text("half")
    assert labels(run) == []


def test_a_kill_while_an_old_one_is_removed_leaves_only_whole_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunFolder(tmp_path)
    save(run, "rl", 1)
    save(run, "rl", 2)
    removals: list[Path] = []
    real = shutil.rmtree

    def dies(path: Path, *args: object, **keywords: object) -> None:
        if keywords.get("ignore_errors"):
            real(path, ignore_errors=True)
            return
        removals.append(path)
        (Path(path) / "state.json").unlink()
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", dies)
        with pytest.raises(Killed):
            save(run, "rl", 3)
    assert removals
    assert labels(run) == ["rl-2", "rl-3"]
    for checkpoint in run.checkpoints():
        assert (checkpoint.path / "state.json").is_file()
        assert (checkpoint.path / "deep" / "weights").is_file()
    save(run, "rl", 4)
    assert labels(run) == ["rl-3", "rl-4"]


def test_other_things_in_the_folder_are_no_checkpoints(tmp_path: Path) -> None:
    for name in ("rl-1x", "rl-", "notes", "RL-1", "eval-3"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    (tmp_path / "checkpoints" / "rl-7").write_text("a file")
    assert labels(RunFolder(tmp_path)) == []
