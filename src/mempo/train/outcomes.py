"""Outcome advantages: the scores of a group compared with their mean."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mempo.config.train import AdvantageSettings
from mempo.train.pools import against, finite


@dataclass(frozen=True)
class OutcomeAdvantages:
    """`values` `[rollouts]`. `mean`, `std` are None when they do not exist. `zero_spread`: all scores are equal, so
    every advantage is 0."""

    values: list[float]
    mean: float | None
    std: float | None
    zero_spread: bool


def outcome_advantages(scores: Sequence[float], settings: AdvantageSettings) -> OutcomeAdvantages:
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
        values=[against(value, known, settings.normalize_std) if len(known) > 1 else 0.0 for value in known],
        mean=float(values.mean()) if len(known) else None,
        std=float(values.std(ddof=1)) if len(known) > 1 else None,
        zero_spread=len(set(known)) == 1,
    )
