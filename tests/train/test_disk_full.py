"""A disk that is full while something is saved: one sentence, and what was saved before is whole."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError

import mempo.train.checkpoint as state
from mempo.errors import UserError
from mempo.storage.run_folder import RunFolder
from mempo.train.checkpoint import CannotSave, Rescue, saving
from tests.train.small import quiet, run


def no_space(*arguments: Any, **keywords: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device", "model.safetensors")


def no_space_of_safetensors(*arguments: Any, **keywords: Any) -> None:
    raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


def no_space_of_tokenizers(*arguments: Any, **keywords: Any) -> None:
    raise Exception("No space left on device (os error 28)")


@pytest.mark.parametrize("write", [no_space, no_space_of_safetensors, no_space_of_tokenizers])
def test_one_sentence(tmp_path: Path, write: Callable[[], None]) -> None:
    match = r"rl-3 cannot be written \(.*No space left.*make room"
    with pytest.raises(UserError, match=match) as said, saving(tmp_path / "rl-3"):
        write()
    assert "\n" not in str(said.value)


def test_a_mistake_of_the_programme_stays_one(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), saving(tmp_path / "rl-3"):
        raise RuntimeError("a mistake")


def test_a_save_that_failed_is_not_tried_again() -> None:
    tried: list[int] = []

    def save(step: int) -> None:
        tried.append(step)
        raise CannotSave("full")

    with pytest.raises(CannotSave), Rescue(save, 0, quiet(), lambda: 0) as rescue:
        rescue.finished(1, due=True)
    assert tried == [1]


@pytest.mark.slow
def test_the_checkpoint_before_is_whole_and_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ("rl.steps=2", "rl.save_every=1", "sft.steps=1", "evaluate.questions=1")
    save = state.save_optimizer

    def fails(optimizer: Any, path: Path) -> None:
        if "rl-2" in str(path):
            no_space()
        save(optimizer, path)

    with monkeypatch.context() as patch:
        patch.setattr(state, "save_optimizer", fails)
        with pytest.raises(UserError, match=r"rl-2 cannot be written \(No space left on device\)"):
            run(tmp_path / "run", *settings)
    folder = RunFolder(tmp_path / "run")
    assert folder.checkpoints()[-1].path.name == "rl-1"
    assert not list((tmp_path / "run").rglob(".*.tmp-*"))
    run(tmp_path / "run", *settings, resume=True)
    assert folder.checkpoints()[-1].path.name == "rl-2"
