"""Train or test, decided by entity.

A fact belongs to the split of its subject, and all facts that a question rests on must be of one split: so no fact that
a test question needs is ever asked, or passed through, in training. Entities whose facts mirror each other share their
split: a capital has its country's ("capital of France", "country of Paris"), a prize with one winner has the winner's.

The split is a hash of the id, so it does not move when the data grows.
"""

from __future__ import annotations

import hashlib
from typing import Literal

from mempo.envs.atlas.facts import Entity

Split = Literal["train", "test"]
TEST_FRACTION = 0.2


def split_of(entity: Entity, test_fraction: float = TEST_FRACTION) -> Split:
    """Which split the facts of an entity belong to; about `test_fraction` of the entities are test."""
    digest = hashlib.sha256(f"atlas split {entity.split_key}".encode()).digest()
    return "test" if int.from_bytes(digest[:8], "big") < test_fraction * 2**64 else "train"
