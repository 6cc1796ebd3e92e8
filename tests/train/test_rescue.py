"""What is done when a run fails between two checkpoints is not lost, and two processes do not share a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import mempo.engine.update
import mempo.train.rl
import mempo.train.score_batch
from mempo.config.rewards import MemorySettings
from mempo.errors import UserError
from mempo.storage.run_folder import RunFolder
from mempo.train.checkpoint import Rescue, load_silence
from mempo.train.rl import train_rl
from mempo.train.score_batch import ScoredBatch
from tests.train.fakes import Speaker, questions, run_folder, settings, setup, wandering
from tests.train.small import assert_same_weights, quiet, run


def rescued(fail_at: int, error: type[BaseException], *, after_a_change: bool = False) -> list[int]:
    """Five steps with a checkpoint after the second; the steps saved on the way out."""
    saved: list[int] = []
    version = 0

    def stage() -> None:
        nonlocal version
        with Rescue(saved.append, 0, quiet(), lambda: version) as rescue:
            for step in range(5):
                if step == fail_at and not after_a_change:
                    raise error
                version += 1
                if step == fail_at:
                    raise error
                rescue.finished(step + 1, due=step + 1 == 2)

    with pytest.raises(error):
        stage()
    assert saved.pop(0) == 2 if fail_at >= 2 else saved == []
    return saved


def test_whole_steps_are_saved_and_half_ones_are_not() -> None:
    assert rescued(4, RuntimeError) == [4]
    assert rescued(4, KeyboardInterrupt) == [4]
    assert rescued(2, RuntimeError) == [], "the checkpoint has it already"
    assert rescued(4, RuntimeError, after_a_change=True) == []
    assert rescued(0, RuntimeError) == []


def test_a_rescued_checkpoint_remembers_how_silent_the_batches_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Saved on the way out, between two checkpoints: with the steps that are whole, without the one that failed."""
    score, calls = mempo.train.rl.score_batch, 0

    def fails(*arguments: Any) -> ScoredBatch:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise UserError("the judge is gone")
        return score(*arguments)

    monkeypatch.setattr(mempo.train.rl, "score_batch", fails)
    folder = run_folder(tmp_path)
    made = setup(Speaker(wandering), questions(6), memory=MemorySettings(min_pool=2))
    changes: dict[str, Any] = {"questions_per_step": 3, "rollouts_per_question": 3, "save_every": 9}
    with pytest.raises(UserError, match="the judge is gone"):
        train_rl(made, settings(steps=9, **changes), folder, quiet())
    (checkpoint,) = folder.checkpoints()
    shares = [line["advantages/zero_spread_groups"] for line in folder.metrics()]
    assert (checkpoint.step, len(shares)) == (3, 3)
    assert load_silence(checkpoint) == tuple(shares)


@pytest.mark.slow
@pytest.mark.parametrize(("where", "saved"), [("backward", [3, 4]), ("step", [3])])
def test_out_of_memory_in_an_update_leaves_the_step_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, saved: list[int]
) -> None:
    """In the fifth step: in a backward pass no weight has changed yet, in the optimizer's some may have."""
    update_policy, policy_loss, step = (
        mempo.train.rl.update_policy,
        mempo.engine.update.policy_loss,
        torch.optim.AdamW.step,
    )
    updates = 0

    def update(*arguments: object) -> object:
        nonlocal updates
        updates += 1
        return update_policy(*arguments)  # type: ignore[arg-type]

    def loss(*arguments: object) -> object:
        if where == "backward" and updates == 5:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")
        return policy_loss(*arguments)  # type: ignore[arg-type]

    def steps(self: torch.optim.AdamW, *arguments: object) -> object:
        if where == "step" and updates == 5:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")
        return step(self, *arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(mempo.train.rl, "update_policy", update)
        patch.setattr(mempo.engine.update, "policy_loss", loss)
        patch.setattr(torch.optim.AdamW, "step", steps)
        with pytest.raises(UserError, match="out of memory in the update of rl"):
            run(tmp_path / "failed")
    found = [c.step for c in RunFolder(tmp_path / "failed").checkpoints() if c.stage == "rl"]
    assert found == saved


@pytest.mark.slow
def test_a_run_that_fails_goes_on_from_the_last_whole_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(tmp_path / "whole")
    score = mempo.train.score_batch.outcome_score
    calls = 0

    def dies(*arguments: object) -> object:
        nonlocal calls
        calls += 1
        if calls > 8 * (1 + 4):  # in the fifth step of 8 rollouts, after those of the start check; saved are 3 and 6
            raise UserError("the judge is gone")
        return score(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(mempo.train.score_batch, "outcome_score", dies)
        with pytest.raises(UserError, match="the judge is gone"):
            run(tmp_path / "failed")
    assert [(c.stage, c.step) for c in RunFolder(tmp_path / "failed").checkpoints() if c.stage == "rl"] == [
        ("rl", 3),
        ("rl", 4),
    ]
    assert_same_weights(run(tmp_path / "failed", resume=True) / "final", whole / "final")


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with (
        RunFolder(tmp_path / "run").locked(),
        pytest.raises(UserError, match="another process is at work"),
        RunFolder(tmp_path / "run").locked(),
    ):
        raise AssertionError
    assert not (tmp_path / "run").exists(), "a folder in which nothing was written goes again"


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="cannot be written"), RunFolder(tmp_path / "file" / "run").locked():
        raise AssertionError


def test_other_questions_are_refused_on_resume(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.refuse_other_data({"training questions": "a", "corpus": "c"}, resume=False)
    folder.refuse_other_data({"training questions": "a", "corpus": "c"}, resume=True)
    with pytest.raises(UserError, match=r"training questions changed since the run"):
        folder.refuse_other_data({"training questions": "b", "corpus": "c"}, resume=True)
    assert json.loads((tmp_path / "data.json").read_text())["training questions"] == "a"
