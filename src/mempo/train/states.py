"""States: turns that began with the very same prompt.

The key of turn t of rollout i is what the policy saw and what was written for it, `prompt_ids + forced_ids`, within the
group of one question. What differs between two rollouts in one state is what they did in it, and not the luck of how
they came there. In a context that forgets, many rollouts of a group share states.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mempo.rollout.trajectory import Trajectory

StateKeys = Mapping[int, int]
"""`{turn: state}` of one rollout; states are numbers, equal where the keys are."""


def state_keys(trajectories: Sequence[Trajectory]) -> list[dict[int, int]]:
    """The state of every turn of the rollouts of one question, `[rollouts]{turn: state}`, numbered as they appear."""
    numbers: dict[tuple[int, ...], int] = {}
    return [
        {turn.index: numbers.setdefault(turn.prompt_ids + turn.forced_ids, len(numbers)) for turn in trajectory.turns}
        for trajectory in trajectories
    ]


def rollouts_of_states(states: Sequence[StateKeys]) -> dict[int, list[int]]:
    """Which rollouts passed each state, each once however often it did."""
    found: dict[int, list[int]] = {}
    for rollout, by_turn in enumerate(states):
        for state in set(by_turn.values()):
            found.setdefault(state, []).append(rollout)
    return found
