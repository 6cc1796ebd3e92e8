"""States: where notes of one group were written from the very same prompt."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from mempo.rollout.trajectory import Trajectory, Turn

Key = tuple[int, tuple[int, ...], tuple[int, ...]]
"""Group, prompt ids, and ids that were forced upon the turn."""


@dataclass(frozen=True)
class NoteAt:
    """A note by its place: rollout in the batch, turn counted from 0."""

    rollout: int
    turn: int


@dataclass(frozen=True)
class State:
    """`notes`: of the rollouts of the group that were written here, at most as many as are judged."""

    key: Key
    notes: tuple[NoteAt, ...]


def can_go_on(turn: Turn, max_turn_tokens: int) -> bool:
    """Whether a rollout can be played on from the turn's note: it is closed and leaves room in the turn."""
    if turn.note_ids is None or turn.note_span is None:
        return False
    return turn.note_span[1] - len(turn.forced_ids) < max_turn_tokens


def states_of(
    trajectories: Sequence[Trajectory], groups: Sequence[int], max_turn_tokens: int
) -> dict[Key, list[NoteAt]]:
    """The notes of the second turn and later, by state; `groups` `[rollouts]`."""
    found: dict[Key, list[NoteAt]] = {}
    for i, (trajectory, group) in enumerate(zip(trajectories, groups, strict=True)):
        for turn in () if trajectory.is_error else trajectory.turns[1:]:
            if can_go_on(turn, max_turn_tokens):
                found.setdefault((group, turn.prompt_ids, turn.forced_ids), []).append(NoteAt(i, turn.index))
    return found


def choose(states: dict[Key, list[NoteAt]], count: int, notes_each: int, seed: str) -> list[State]:
    """`count` states, each as likely as it has notes, and `notes_each` of the notes of each."""
    rng = random.Random(seed)
    every = [(key, note) for key, notes in states.items() for note in notes]
    rng.shuffle(every)
    chosen: dict[Key, list[NoteAt]] = {}
    for key, note in every:
        if key in chosen or len(chosen) < count:
            chosen.setdefault(key, []).append(note)
    return [State(key, tuple(notes[:notes_each])) for key, notes in chosen.items()]
