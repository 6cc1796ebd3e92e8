"""Every command that works for long, killed at random moments and started again: nothing that was finished is lost,
nothing is doubled, and at its end its folder is that of a command that nothing happened to, bit for bit."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kill.commands import WORKS
from tests.kill.harness import torment

pytestmark = pytest.mark.kill


@pytest.fixture
def base() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.mark.parametrize("name", WORKS)
def test_killed_until_it_is_done(name: str, base: Path, request: pytest.FixtureRequest) -> None:
    make, share = WORKS[name]
    kills, seed = request.config.getoption("--kills"), request.config.getoption("--kill-seed")
    torment(make(), base, max(round(kills * share), 1), random.Random(f"{seed} {name}"))
