"""Outcome advantages: the scores of a group compared with their mean, or turn by turn with that of a state."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mempo.rewards.memory_settings import MemorySettings
from mempo.train.credit_settings import CreditSettings
from mempo.train.pools import against, finite
from mempo.train.states import StateKeys, rollouts_of_states


@dataclass(frozen=True)
class OutcomeAdvantages:
    """`values` `[rollouts]`. `mean`, `std` are None when they do not exist. `zero_spread`: all scores are equal, so
    every advantage is 0."""

    values: list[float]
    mean: float | None
    std: float | None
    zero_spread: bool


def outcome_advantages(scores: Sequence[float], settings: CreditSettings) -> OutcomeAdvantages:
    """Outcome advantages of one group of scores `[rollouts]`.

    A group of one has nothing to compare it with: the advantage is 0, and a warning says so (once, by Python's default
    filter).

    Raises:
        ValueError: a score is not a finite number.
    """
    known = list(finite(scores, "score of rollout").values())
    if len(known) == 1:
        warnings.warn(
            "a group has a single scored rollout: its outcome advantage is 0, so nothing is learnt from it; "
            "use at least 2 rollouts per question, and look at the error counts if you do",
            stacklevel=2,
        )
    values = np.array(known)
    return OutcomeAdvantages(
        values=[
            against(value, known, known, settings.normalize_std, settings.eps) if len(known) > 1 else 0.0
            for value in known
        ],
        mean=float(values.mean()) if len(known) else None,
        std=float(values.std(ddof=1)) if len(known) > 1 else None,
        zero_spread=len(set(known)) == 1,
    )


def outcome_baseline(credit: CreditSettings, memory: MemorySettings) -> Literal["group", "state"]:
    """What a score is compared with: `credit.baseline`, or else what goes with the preset of the memory signal."""
    return credit.baseline or ("state" if memory.preset == "state" else "group")


def outcome_by_state(
    scores: Sequence[float], states: Sequence[StateKeys], settings: CreditSettings
) -> list[dict[int, float]]:
    """Outcome advantages of one group by turn, `[rollouts]{turn: A}`, where the baseline is that of a state:

        (score - mean score of the rollouts that passed the state of the turn) / (std of the group + eps)

    `states` `[rollouts]{turn: state}`. Each rollout counts once in a state. Turns whose state no other rollout passed
    are left out: they keep the advantage that the rollout has in its group.
    """
    passed = {name: [scores[i] for i in found] for name, found in rollouts_of_states(states).items() if len(found) > 1}
    return [
        {
            turn: against(score, passed[name], scores, settings.normalize_std, settings.eps)
            for turn, name in by_turn.items()
            if name in passed
        }
        for score, by_turn in zip(scores, states, strict=True)
    ]
