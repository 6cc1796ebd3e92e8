"""Signals by state: notes and rollouts compared where they began with the very same prompt (GiGPO's anchor states).

They tell what a note is worth better than any other signal on offer, and policies that were trained on them learned no
better and sometimes worse (docs/results.md), so training has no setting for them. They are measured here, as a bound.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from mempo.rollout.trajectory import Trajectory
from mempo.train.pools import EPS, NoteRewards

States = Sequence[dict[int, int]]
"""`[rollouts]{turn: state}` of one question; turns with the same number began with the same ids."""
MIN_STATE = 4
"""Notes of a state with fewer are compared with all of their turn."""


def states_of_turns(trajectories: Sequence[Trajectory]) -> States:
    """The key of a turn is what the policy saw and what was written for it, `prompt_ids + forced_ids`."""
    numbers: dict[tuple[int, ...], int] = {}
    return [
        {turn.index: numbers.setdefault(turn.prompt_ids + turn.forced_ids, len(numbers)) for turn in trajectory.turns}
        for trajectory in trajectories
    ]


def outcome_by_state(scores: Sequence[float], states: States) -> list[dict[int, float]]:
    """`[rollouts]{turn: A}`: the score less the mean score of the rollouts that passed the turn's state, each counted
    once, over the std of the group; the group's mean where no other rollout passed it."""
    spread = float(np.std(scores, ddof=1)) + EPS if len(scores) > 1 else 1.0
    passed: dict[int, set[int]] = {}
    for i, by_turn in enumerate(states):
        for state in by_turn.values():
            passed.setdefault(state, set()).add(i)

    def expected(state: int) -> float:
        mates = passed[state] if len(passed[state]) > 1 else range(len(scores))
        return float(np.mean([scores[i] for i in mates]))

    return [
        {turn: (scores[i] - expected(state)) / spread for turn, state in turns.items()}
        for i, turns in enumerate(states)
    ]


def memory_by_state(
    notes: Sequence[NoteRewards], lost: Sequence[Collection[int]], states: States
) -> list[dict[int, float]]:
    """`[rollouts]{turn: A}`: the reward of a note less the mean of its state, over the std of its turn. A lost note has
    the lowest reward there is."""
    known = {(i, turn): r for i, turns in enumerate(notes) for turn, r in turns.items() if r is not None}
    worst = min([0.0, *known.values()])
    known |= {(i, turn): worst for i, turns in enumerate(lost) for turn in turns}
    made: list[dict[int, float]] = [{} for _ in notes]
    for (i, turn), r in sorted(known.items()):
        of_turn = [value for (_, other), value in known.items() if other == turn]
        of_state = [v for (j, other), v in known.items() if states[j].get(other) == states[i].get(turn)]
        mates = of_state if len(of_state) >= MIN_STATE else of_turn
        if len(of_turn) > 1 and len(set(of_turn)) > 1:
            made[i][turn] = (r - float(np.mean(mates))) / (float(np.std(of_turn, ddof=1)) + EPS)
        elif len(of_turn) > 1:
            made[i][turn] = 0.0
    return made
