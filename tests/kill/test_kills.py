"""Every command that works for long, killed at random moments and started again: nothing that was finished is lost,
nothing is doubled, and at its end its folder is that of a command that nothing happened to, bit for bit."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kill.child import Call, each_folder
from tests.kill.commands import WORKS
from tests.kill.harness import assert_no_leftovers, assert_one_line, begin, is_complete, run, torment, undisturbed

pytestmark = pytest.mark.kill


@pytest.fixture
def base() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.mark.parametrize("name", WORKS)
def test_killed_until_it_is_done(name: str, base: Path, request: pytest.FixtureRequest) -> None:
    make, share = WORKS[name]
    kills, seed = int(str(request.config.getoption("--kills"))), request.config.getoption("--kill-seed")
    torment(make(), base, max(round(kills * share), 1), random.Random(f"{seed} {name}"))


@pytest.mark.parametrize("name", ["train", "eval", "bm25", "dense", "study"])
def test_a_folder_that_becomes_read_only(name: str, base: Path, request: pytest.FixtureRequest) -> None:
    """In the middle of the work: one line, and what was saved before is whole once it may be written again."""
    work, rng = WORKS[name][0](), random.Random(f"{request.config.getoption('--kill-seed')} {name}")
    straight, folder = undisturbed(work, base), base / "disturbed" / "root"
    begin(work, folder)
    for at in sorted(rng.sample(range(1, max(straight.changes * 2 // 3, 5)), 3)):
        call = Call(work.words(folder), str(folder), str(base / "log"), at_change=at, shut=True)
        ended = run(call)
        each_folder(folder, lambda path: os.chmod(path, 0o755))
        work.whole(folder)
        if ended.code == 0:  # it had less left to write
            break
        assert ended.code == 2, ended.said
        assert_one_line(ended)
    ended = run(Call(work.words(folder), str(folder), str(base / "log")))
    assert is_complete(ended), ended.said
    work.same(folder, straight.folder)
    assert_no_leftovers(folder, straight.folder)
