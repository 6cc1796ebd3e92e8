"""A disk that is full while something is written: one sentence that names it, and nothing half-written is taken for
whole. Where a file may have so many bytes and no more, the system itself refuses the rest."""

from __future__ import annotations

import errno
import json
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import SafetensorError

import mempo.train.checkpoint as state
from mempo.errors import UserError
from mempo.retrieval import faiss as faiss_index
from mempo.rollout.protocol import TurnGrammar
from mempo.rollout.question import Question
from mempo.rollout.trajectory import Trajectory
from mempo.storage.append import RolloutAppender, read_rollout_lines
from mempo.storage.rollouts import load_rollouts
from mempo.storage.run_folder import RunFolder
from mempo.train.checkpoint import CannotSave, Rescue, saving
from tests.train.fakes import TOKENIZER, played
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


ONE_FILE_TOO_LARGE = """
import resource, sys
from mempo.cli.main import main

def command(bytes, *words):
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes, resource.RLIM_INFINITY))
    sys.argv = ["mempo", *words]
    try:
        main()
    except SystemExit as stop:
        print(bytes, stop.code, file=sys.stderr)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

corpus, out, *kinds = sys.argv[1:]
for bytes in (100, 400, 1000, 2000, 3000, 5000):
    for kind in kinds:
        command(bytes, "index", "build", corpus, "--out", f"{out}/{kind}", f"kind={kind}")
    command(bytes, "environment", "atlas", "--out", f"{out}/environment", "--train", "9", "--test", "9")
    command(bytes, "environment", "maze", "--out", f"{out}/mazes", "--train", "40", "--test", "9")
"""


@pytest.mark.slow
def test_files_that_may_not_grow_are_named_and_nothing_of_them_stays(tmp_path: Path) -> None:
    corpus, out = tmp_path / "corpus.jsonl", tmp_path / "out"
    rows = [{"id": str(n), "title": f"t{n}", "text": f"city number {n}"} for n in range(400)]
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out.mkdir()
    words = [sys.executable, "-c", ONE_FILE_TOO_LARGE, str(corpus), str(out), "bm25", "tantivy"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    said = done.stderr.splitlines()
    assert len(said) == 2 * 24, done.stderr
    assert all(re.fullmatch(r"mempo: (File too large|No space left on device) \(.*/out/.*\)", s) for s in said[::2])
    assert all(line.endswith(" 2") for line in said[1::2])
    assert list(out.iterdir()) == []


def test_rollouts_that_found_no_room_are_played_again(tmp_path: Path) -> None:
    file = tmp_path / "memory.jsonl"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    made = [played(Question(f"q{n}", "?", "Paris"), 2) for n in range(40)]

    def append(trajectories: list[Trajectory]) -> None:
        with RolloutAppender(file) as appender:
            for one in trajectories:
                appender.append(one, {})

    resource.setrlimit(resource.RLIMIT_FSIZE, (6000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large") as said:
            append(made)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert said.value.filename == str(file)
    before = [line["question_id"] for line in read_rollout_lines(file)]
    assert 0 < len(before) < 40
    append(made[len(before) :])
    assert [one.question_id for one in load_rollouts(file, TOKENIZER, TurnGrammar())[0]] == [f"q{n}" for n in range(40)]


def test_faiss_notices(tmp_path: Path) -> None:
    """Its own writer takes the last bytes for written."""
    index = faiss_index.make("Flat", 8, "inner_product")
    faiss_index.add(index, np.zeros((100, 8), dtype=np.float32), lambda *done: None)
    faiss_index.write(index, tmp_path / "whole")
    size = (tmp_path / "whole").stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size - 1, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            faiss_index.write(index, tmp_path / "cut")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
