"""Functions that studies name by import path: a dense outcome, and controls that break the tie of a note and its r.

The controls are the recommended signal with rewards of other notes: what they gain or lose, no content of a note did.
They fade with the silent groups of their own batch, since a function keeps nothing from one step to the next.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from mempo.config.rewards import MemorySettings
from mempo.config.train import AdvantageSettings
from mempo.rewards.answer_match import answers_given
from mempo.rollout.question import Question
from mempo.rollout.trajectory import Trajectory
from mempo.train.advantages import AdvantageBatch, batch_advantages
from mempo.train.pools import NoteRewards

Pair = tuple[list[float], list[dict[int, float]]]


def shuffled(batch: AdvantageBatch) -> Pair:
    """`advantages=mempo.study.controls:shuffled`: r dealt out anew among the notes of its question and turn."""
    pools: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for i, rewards in enumerate(batch.notes):
        for turn, r in rewards.items():
            if r is not None:
                pools.setdefault((batch.groups[i], turn), []).append((i, turn))
    rng = random.Random(f"shuffled {batch.step}")
    notes = [dict(rewards) for rewards in batch.notes]
    for places in pools.values():
        values = [batch.notes[i][turn] for i, turn in places]
        rng.shuffle(values)
        for (i, turn), r in zip(places, values, strict=True):
            notes[i][turn] = r
    return _recommended(batch, notes)


def other_question(batch: AdvantageBatch) -> Pair:
    """`advantages=mempo.study.controls:other_question`: each note has the r of a note of the same turn of another
    question of the step, where there is one; else it earns nothing."""
    by_turn: dict[int, dict[int, list[float]]] = {}
    for group, rewards in zip(batch.groups, batch.notes, strict=True):
        for turn, r in rewards.items():
            if r is not None:
                by_turn.setdefault(turn, {}).setdefault(group, []).append(r)
    rng = random.Random(f"other question {batch.step}")

    def another(group: int, turn: int) -> float | None:
        others = [r for other, found in by_turn.get(turn, {}).items() if other != group for r in found]
        return rng.choice(others) if others else None

    notes = [
        {turn: None if r is None else another(group, turn) for turn, r in rewards.items()}
        for group, rewards in zip(batch.groups, batch.notes, strict=True)
    ]
    return _recommended(batch, notes)


def share_right(question: Question, trajectory: Trajectory) -> float:
    """`reward=mempo.study.controls:share_right`: the share of objectives whose answer is given, at whatever place."""
    return answers_given(trajectory.answer, question.objectives)


def _recommended(batch: AdvantageBatch, notes: Sequence[NoteRewards]) -> Pair:
    made = batch_advantages(replace(batch, notes=list(notes)), AdvantageSettings(), MemorySettings())
    return made.outcome, made.memory
