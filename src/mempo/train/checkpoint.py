"""Checkpoints of a training stage: a model folder, the optimizer, and the step.

Questions, learning rates and sampling noise are functions of the run's seed and the step, so a step number is all of
the data position and of the random state that there is. Torch's generator is not used while training. What else a step
hands on is how silent the last batches were, by which memory advantages fade.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Literal, NotRequired

import torch
from pydantic import TypeAdapter
from rich.console import Console
from safetensors import SafetensorError
from typing_extensions import TypedDict

from mempo.engine.model import save_trained
from mempo.engine.optimizer import AnyOptimizer, load_optimizer, save_optimizer
from mempo.engine.policy import Policy
from mempo.errors import UserError
from mempo.progress import say
from mempo.storage.read_files import DamagedFile, read_json, reason
from mempo.storage.run_folder import Checkpoint, RunFolder
from mempo.storage.stopping import not_while, stop_if_asked


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

    with saving(run.path / "checkpoints" / f"{stage}-{step}"):
        return run.save_checkpoint(stage, step, write, keep, keep_every)


@contextmanager
def saving(target: Path) -> Iterator[None]:
    """A model folder that cannot be written (a full disk, no permission) is one sentence.

    Raises:
        UserError: what is wrong; what stood at `target` is as it was, and so are the checkpoints before it.
    """
    try:
        yield
    except Exception as error:
        # The tokenizers library reports a full disk as a bare Exception.
        if not isinstance(error, OSError | SafetensorError) and "os error" not in str(error):
            raise
        raise CannotSave(
            f"{target} cannot be written ({reason(error)}); what was saved before is whole: make room, then --resume "
            "goes on from there"
        ) from error


class CannotSave(UserError):
    """A checkpoint could not be written; trying once more would end the same way."""


class _State(TypedDict):
    stage: Literal["sft", "rl"]
    step: int
    silence: NotRequired[list[float]]


_STATE = TypeAdapter(_State)


def load_optimizer_state(checkpoint: Checkpoint, optimizer: AnyOptimizer) -> int:
    """Restore the optimizer; returns the number of steps done.

    Raises:
        UserError: the checkpoint is not what its name says.
    """
    remedy, state = _remedy(checkpoint), _state(checkpoint)
    if (state["stage"], state["step"]) != (checkpoint.stage, checkpoint.step):
        found = f"step {state['step']} of {state['stage']}"
        raise UserError(f"{checkpoint.path} holds {found}; it was renamed or damaged: {remedy}")
    file = checkpoint.path / "optimizer.safetensors"
    try:
        load_optimizer(optimizer, file)
    except (OSError, ValueError, LookupError, TypeError, RuntimeError, SafetensorError) as error:
        raise DamagedFile(f"{file} is damaged ({reason(error)}); {remedy}") from error
    return state["step"]


def load_silence(checkpoint: Checkpoint) -> tuple[float, ...]:
    """How silent the batches before the checkpoint were; nothing in one of an earlier version."""
    return tuple(_state(checkpoint).get("silence", ()))


def _state(checkpoint: Checkpoint) -> _State:
    return read_json(checkpoint.path / "state.json", _STATE, _remedy(checkpoint))


def _remedy(checkpoint: Checkpoint) -> str:
    return f"remove {checkpoint.path}, and --resume continues from the checkpoint before it"


def last_checkpoint(run: RunFolder, stage: str) -> Checkpoint | None:
    found = [c for c in run.checkpoints() if c.stage == stage]
    return found[-1] if found else None


class Rescue:
    """Saves the steps that are done when a stage fails or is stopped between two checkpoints.

    Only whole steps: an update that fails before it has changed a weight (out of memory in a backward pass) leaves
    those of the step before it, which are saved; once weights have changed there is no whole step to save.
    `version()` tells one set of weights from another (`Policy.version`). A signal that comes while they are changing
    waits until the step is whole.
    """

    def __init__(
        self, save: Callable[[int], object], done: int, console: Console, version: Callable[[], object]
    ) -> None:
        self._save, self._console, self._version = save, console, version
        self._saved = self._whole = done
        self._weights = version()

    def finished(self, step: int, due: bool) -> None:
        """`step` steps are done; `due`: a checkpoint is written now. Stopped while it is written, it is written on the
        way out."""
        self._whole, self._weights = step, self._version()
        if due:
            self._save(step)
            self._saved = step
        stop_if_asked()

    def __enter__(self) -> Rescue:
        # Between the first changed weight and the end of the step a signal would cost every step since the checkpoint.
        self._undivided = not_while(lambda: self._version() != self._weights)
        self._undivided.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._undivided.__exit__(None, None, None)
        failed = isinstance(error, Exception | KeyboardInterrupt) and not isinstance(error, CannotSave)
        if failed and self._whole > self._saved and self._version() == self._weights:
            self._save(self._whole)
            self._saved = self._whole
            if not isinstance(error, KeyboardInterrupt):  # who stops it is told by the command itself
                say(self._console, f"step {self._whole} is saved; --resume continues from there")
