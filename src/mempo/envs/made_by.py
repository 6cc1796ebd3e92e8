"""How the files of a world were made, in a phrase: the same phrase means the same files."""

from __future__ import annotations

import hashlib


def made_by_world(name: str, world: object, train: int, test: int, objectives: object, seed: int) -> str:
    """`world` is told apart by its fields, which may be many."""
    mark = hashlib.sha256(repr((world, objectives)).encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"mempo world {name} with {train} and {test} questions, seed {seed}, options {mark}"
