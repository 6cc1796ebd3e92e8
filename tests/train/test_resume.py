"""A killed run goes on exactly: the same questions, rollouts, step labels, learning rates and weights, bit for bit."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

import mempo.train.rl
import mempo.train.sft
from mempo.errors import UserError
from mempo.storage.run_folder import RunFolder
from tests.train.small import assert_same_weights, metrics, run

pytestmark = pytest.mark.slow


class Killed(BaseException):
    pass


def kill_after(monkeypatch: pytest.MonkeyPatch, module: Any, step: int, *, before_saving: bool = False) -> None:
    """Die as the checkpoint of `step` is due: just before it is written, or just after."""
    save = module.save_state

    def dying(run_folder: RunFolder, stage: str, at: int, *rest: Any, **more: Any) -> Path:
        if at == step and before_saving:
            raise Killed
        path = save(run_folder, stage, at, *rest, **more)
        if at == step:
            raise Killed
        return path

    monkeypatch.setattr(module, "save_state", dying)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("runs") / "unbroken")


def test_the_unbroken_run_takes_every_step(unbroken: Path) -> None:
    """Else its weights would be easy to come by again."""
    assert [line["update/optimizer_steps"] for line in metrics(unbroken, "rl")] == [1] * 6
    assert [line["update/skipped"] for line in metrics(unbroken, "sft")] == [0] * 6
    steps = [unbroken / "checkpoints" / name for name in ("sft-3", "sft-6", "rl-3", "rl-6")]
    for before, after in itertools.pairwise(steps):
        with pytest.raises(AssertionError):
            assert_same_weights(before, after)
    assert_same_weights(unbroken / "checkpoints" / "rl-6", unbroken / "final")


def resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, step: int, **how: bool) -> Path:
    folder = tmp_path / "broken"
    with monkeypatch.context() as patch:
        kill_after(patch, module, step, **how)
        with pytest.raises(Killed):
            run(folder)
    return run(folder, resume=True)


def assert_same_run(folder: Path, unbroken: Path) -> None:
    assert_same_weights(folder / "final", unbroken / "final")
    for stage in ("sft", "rl"):
        assert metrics(folder, stage) == metrics(unbroken, stage)
        assert [line["step"] for line in metrics(folder, stage)] == [1, 2, 3, 4, 5, 6]
    for name in [f"step-{n}" for n in range(1, 7)]:
        for ending in ("jsonl", "tokens"):
            file = f"rollouts/{name}.{ending}"
            assert (folder / file).read_bytes() == (unbroken / file).read_bytes()
    for name in ("start", "final"):
        file = f"evaluation-{name}.json"
        assert json.loads((folder / file).read_text()) == json.loads((unbroken / file).read_text())


def test_three_steps_and_a_kill_and_three_more_equal_six(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unbroken: Path
) -> None:
    assert_same_run(resumed(tmp_path, monkeypatch, mempo.train.rl, 3), unbroken)


def test_steps_after_the_last_checkpoint_are_done_again_and_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unbroken: Path
) -> None:
    assert_same_run(resumed(tmp_path, monkeypatch, mempo.train.rl, 6, before_saving=True), unbroken)


def test_sft_resumes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unbroken: Path) -> None:
    assert_same_run(resumed(tmp_path, monkeypatch, mempo.train.sft, 3), unbroken)


def test_a_kill_between_the_stages_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unbroken: Path
) -> None:
    assert_same_run(resumed(tmp_path, monkeypatch, mempo.train.sft, 6), unbroken)


def test_a_resumed_sft_forgets_from_the_same_step_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forgets = ("sft.lossy_steps=2", "rl.steps=0", "evaluate.questions=1")
    whole = run(tmp_path / "whole", *forgets)
    for step in (3, 6):  # before the switch after step 4, and after it
        with monkeypatch.context() as patch:
            kill_after(patch, mempo.train.sft, step, before_saving=step == 6)
            with pytest.raises(Killed):
                run(tmp_path / f"broken-{step}", *forgets)
        resumed = run(tmp_path / f"broken-{step}", *forgets, resume=True)
        assert_same_weights(resumed / "final", whole / "final")
        assert metrics(resumed, "sft") == metrics(whole, "sft")


def test_another_configuration_is_refused_with_the_keys_that_changed(unbroken: Path) -> None:
    with pytest.raises(UserError, match=r"rl\.optim\.lr: 0\.0005 → 0\.1"):
        run(unbroken, "rl.optim.lr=0.1", resume=True)


def test_a_folder_with_a_run_is_not_written_over(unbroken: Path) -> None:
    with pytest.raises(UserError, match="--resume"):
        run(unbroken)


def test_nothing_to_resume_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no run"):
        run(tmp_path / "empty", resume=True)
