"""Checkpoints of a training stage: a model folder, the optimizer, and the step.

Questions, learning rates and sampling noise are functions of the run's seed and the step, so a step number is all of
the data position and of the random state that there is. Torch's generator is not used while training.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

from mempo.engine.model import Policy, save_policy
from mempo.engine.optimizer import AnyOptimizer, load_optimizer, save_optimizer
from mempo.errors import UserError
from mempo.runs.folder import Checkpoint, RunFolder


def save_state(run: RunFolder, stage: str, step: int, policy: Policy, optimizer: AnyOptimizer, keep: int = 2) -> Path:
    """Write a whole checkpoint after `step` steps of `stage`."""

    def write(folder: Path) -> None:
        save_policy(policy, folder)
        save_optimizer(optimizer, folder / "optimizer.safetensors")
        state = {"stage": stage, "step": step, "torch": torch.__version__}
        (folder / "state.json").write_text(json.dumps(state), encoding="utf-8")

    return run.save_checkpoint(stage, step, write, keep)


def load_optimizer_state(checkpoint: Checkpoint, optimizer: AnyOptimizer) -> int:
    """Restore the optimizer; returns the number of steps done.

    Raises:
        UserError: the checkpoint is not what its name says.
    """
    state = json.loads((checkpoint.path / "state.json").read_text("utf-8"))
    if (state["stage"], state["step"]) != (checkpoint.stage, checkpoint.step):
        raise UserError(f"{checkpoint.path} holds step {state['step']} of {state['stage']}; it was renamed or damaged")
    load_optimizer(optimizer, checkpoint.path / "optimizer.safetensors")
    return int(state["step"])


def last_checkpoint(run: RunFolder, stage: str) -> Checkpoint | None:
    found = [c for c in run.checkpoints() if c.stage == stage]
    return found[-1] if found else None
