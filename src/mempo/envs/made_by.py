"""How the files of an environment were made, in a phrase: the same phrase means the same files."""

from __future__ import annotations

import hashlib


def made_by_environment(name: str, environment: object, train: int, test: int, objectives: object, seed: int) -> str:
    """`environment` is told apart by its fields, which may be many."""
    mark = hashlib.sha256(repr((environment, objectives)).encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"mempo environment {name} with {train} and {test} questions, seed {seed}, options {mark}"
