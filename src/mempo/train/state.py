"""Checkpoints of a training stage: a model folder, the optimizer, and the step.

Questions, learning rates and sampling noise are functions of the run's seed and the step, so a step number is all of
the data position and of the random state that there is. Torch's generator is not used while training. What else a step
hands on is how silent the last batches were, by which memory advantages fade.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

import torch
from rich.console import Console
from safetensors import SafetensorError

from mempo.engine.model import Policy, save_trained
from mempo.engine.optimizer import AnyOptimizer, load_optimizer, save_optimizer
from mempo.errors import UserError
from mempo.runs.folder import Checkpoint, RunFolder


def save_state(
    run: RunFolder,
    stage: str,
    step: int,
    policy: Policy,
    optimizer: AnyOptimizer,
    silence: Sequence[float] = (),
    keep: int = 2,
    keep_every: int | None = None,
) -> Path:
    """Write a whole checkpoint after `step` steps of `stage`. `silence`: how silent the last batches were (`fade`). The
    newest `keep` stay, and those of every `keep_every` steps."""

    def write(folder: Path) -> None:
        save_trained(policy, folder)
        save_optimizer(optimizer, folder / "optimizer.safetensors")
        state = {"stage": stage, "step": step, "torch": torch.__version__, "silence": list(silence)}
        (folder / "state.json").write_text(json.dumps(state), encoding="utf-8")

    return run.save_checkpoint(stage, step, write, keep, keep_every)


def load_optimizer_state(checkpoint: Checkpoint, optimizer: AnyOptimizer) -> int:
    """Restore the optimizer; returns the number of steps done.

    Raises:
        UserError: the checkpoint is not what its name says.
    """
    remedy = "remove that folder, and --resume goes on from the one before"
    try:
        state = json.loads((checkpoint.path / "state.json").read_text("utf-8"))
        load_optimizer(optimizer, checkpoint.path / "optimizer.safetensors")
    except (OSError, ValueError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"checkpoint {checkpoint.path} is damaged ({reason}); {remedy}") from error
    if (state["stage"], state["step"]) != (checkpoint.stage, checkpoint.step):
        found = f"step {state['step']} of {state['stage']}"
        raise UserError(f"{checkpoint.path} holds {found}; it was renamed or damaged: {remedy}")
    return int(state["step"])


def load_silence(checkpoint: Checkpoint) -> tuple[float, ...]:
    """How silent the batches before the checkpoint were; nothing in one of an earlier version."""
    return tuple(json.loads((checkpoint.path / "state.json").read_text("utf-8")).get("silence", ()))


def last_checkpoint(run: RunFolder, stage: str) -> Checkpoint | None:
    found = [c for c in run.checkpoints() if c.stage == stage]
    return found[-1] if found else None


class Rescue:
    """Saves the steps that are done when a stage fails or is interrupted between two checkpoints.

    Only whole steps: an update that fails before it has changed a weight (out of memory in a backward pass) leaves
    those of the step before it, which are saved; once weights have changed there is no whole step to save.
    `version()` tells one set of weights from another (`Policy.version`).
    """

    def __init__(
        self, save: Callable[[int], object], done: int, console: Console, version: Callable[[], object]
    ) -> None:
        self._save, self._console, self._version = save, console, version
        self._saved = self._whole = done
        self._weights = version()

    def finished(self, step: int, saved: bool) -> None:
        """`step` steps are done; `saved`: and in a checkpoint."""
        self._whole, self._weights = step, self._version()
        if saved:
            self._saved = step

    def __enter__(self) -> Rescue:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        failed = isinstance(error, Exception | KeyboardInterrupt)
        if failed and self._whole > self._saved and self._version() == self._weights:
            self._save(self._whole)
            self._console.print(f"step {self._whole} is saved; --resume goes on from there", highlight=False)
