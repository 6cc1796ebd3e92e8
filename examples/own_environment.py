"""Own environment: `data.environment=examples.own_environment:GreekEnvironment data.environment_options={}`.
Which letter follows which."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

from mempo.retrieval.document import Document
from mempo.rollout.question import Question

NAMES = """Alpha Beta Gamma Delta Epsilon Zeta Eta Theta Iota Kappa Lambda Mu Nu Xi Omicron Pi Rho Sigma Tau Upsilon
Phi Chi Psi Omega"""
LETTERS = NAMES.split()


class GreekEnvironment:
    """Made with `data.environment_options` as keywords. `questions` may return fewer than asked for."""

    name = "greek"

    def __init__(self, every: int = 4) -> None:
        self._every = every  # one letter in so many is held out for testing

    def documents(self) -> Sequence[Document]:
        return [Document(a, a, f"successor of {a}: {b}", None) for a, b in pairwise(LETTERS)]

    def questions(self, split: str, count: int, objectives: int, seed: int) -> list[Question]:
        """`split` is train or test. The same arguments give the same questions."""
        places = [i for i in range(len(LETTERS) - 1) if (i % self._every == 0) == (split == "test")]
        rng = random.Random(f"{split} {objectives} {seed}")
        return [self._question(f"{split}-{objectives}-{n}", rng.sample(places, objectives)) for n in range(count)]

    def _question(self, name: str, places: Sequence[int]) -> Question:
        queries, answers = [f"successor of {LETTERS[i]}" for i in places], [LETTERS[i + 1] for i in places]
        # The plan in `meta` lets the scripted expert play the question: what to search for, and what that finds.
        plan = {"queries": [[query] for query in queries], "finds": [[answer] for answer in answers]}
        return Question(name, "; ".join(queries), tuple((answer,) for answer in answers), meta=plan)
