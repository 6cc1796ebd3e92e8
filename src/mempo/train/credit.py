"""Credit of a batch: per rollout once, then spread over its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mempo.credit import (
    CreditSettings,
    CustomCredit,
    checked_credit,
    memory_advantages,
    outcome_credit,
    token_advantages,
)
from mempo.measures import mean
from mempo.rewards.memory import MemorySettings, NoteScore
from mempo.rewards.outcome import OutcomeScore
from mempo.trajectory import Trajectory


@dataclass(frozen=True)
class Credit:
    """`tokens` `[rollouts]{turn: [generated tokens]}`, and what is reported about it."""

    tokens: list[dict[int, list[float]]]
    metrics: dict[str, float | None]


def assign_credit(
    trajectories: Sequence[Trajectory],
    outcomes: Sequence[OutcomeScore],
    notes: Sequence[Sequence[NoteScore]],
    group_size: int,
    credit: CreditSettings,
    memory: MemorySettings,
    custom: CustomCredit | None = None,
) -> Credit:
    """Groups are runs of `group_size` rollouts of one question, in order.

    Raises:
        ValueError: the rollouts are not whole groups.
    """
    if len(trajectories) % group_size:
        raise ValueError(f"{len(trajectories)} rollouts are not whole groups of {group_size}")
    tokens: list[dict[int, list[float]]] = []
    of_outcome: list[float] = []
    of_memory: list[float] = []
    flat_groups = lone_groups = fallbacks = silent_notes = 0
    for first in range(0, len(trajectories), group_size):
        group = slice(first, first + group_size)
        scores = [outcome.score for outcome in outcomes[group]]
        rewards = [{note.turn: note.r for note in scored} for scored in notes[group]]
        found = outcome_credit(scores, credit)
        flat_groups += found.zero_spread
        lone_groups += found.scored == 1
        if custom is not None:
            outcome_part, memory_part = checked_credit(custom, scores, rewards)
        else:
            outcome_part = found.advantages
            made = memory_advantages(
                rewards,
                pool=memory.pool,
                min_pool=memory.min_pool,
                eps=credit.eps,
                normalize_std=memory.normalize_std,
                weight=memory.weight,
                small_pool=memory.small_pool,
            )
            memory_part = made.by_rollout
            fallbacks += made.fallbacks
            silent_notes += made.no_signal
        of_outcome += [abs(value) for value in outcome_part]
        of_memory += [abs(value) for by_turn in memory_part for value in by_turn.values()]
        for trajectory, outcome, by_turn in zip(trajectories[group], outcome_part, memory_part, strict=True):
            tokens.append(token_advantages(trajectory, outcome, by_turn))
    groups = len(trajectories) // group_size
    return Credit(
        tokens,
        {
            "credit/outcome_abs": mean(of_outcome),
            "credit/memory_abs": mean(of_memory),
            "credit/zero_spread_groups": flat_groups / groups if groups else None,
            "credit/lone_groups": float(lone_groups),
            "credit/pool_fallbacks": None if custom else float(fallbacks),
            "credit/silent_notes": None if custom else float(silent_notes),
        },
    )
