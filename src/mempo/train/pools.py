"""Pools of notes: from the memory rewards of one question's notes to their advantages.

A pool is a set of notes that are compared with each other; the advantage of a note is its reward less the pool's mean,
divided by the pool's standard deviation.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

EPS = 1e-6
"""Added to a standard deviation before something is divided by it."""

NoteRewards = Mapping[int, float | None]
"""`{turn: r}` of one rollout; r None: the note gives no signal."""


@dataclass(frozen=True)
class MemoryAdvantages:
    """Memory advantages of one question: `by_rollout` `[rollouts]{turn: A}`, notes without signal left out.

    Counts of notes: `given` have an advantage, `lost` of these are not there; `fallbacks` were compared in a larger
    pool because their own was too small; `no_signal` have no advantage: no reward, or no pool with two.
    """

    by_rollout: list[dict[int, float]]
    given: int
    fallbacks: int
    no_signal: int
    lost: int


@dataclass(frozen=True)
class _Note:
    """A note to compare. `r` None: it is lost, and takes the lowest value of its pool."""

    rollout: int
    turn: int
    r: float | None


def memory_advantages(
    rewards: Sequence[NoteRewards],
    *,
    pool: Literal["question", "turn"] = "turn",
    min_pool: int = 4,
    eps: float = EPS,
    normalize_std: bool = True,
    weight: float = 1.0,
    small_pool: Literal["no_signal", "original"] = "no_signal",
    lost: Sequence[Collection[int]] | None = None,
    lowest: float = math.inf,
) -> MemoryAdvantages:
    """Memory advantages of one question from the note rewards of its rollouts, `[rollouts]{turn: r}`.

    `pool: turn` compares notes of the same turn index; a turn with fewer than `min_pool` notes falls back to the pool
    of the whole question, else the only rollout that reaches turn t would be paid for running long. Where even that has
    fewer than two, there is no signal. `small_pool: original` never falls back and takes mean 0 and std 1 for a pool of
    one, so the raw reward becomes the advantage.

    `lost` `[rollouts]`: turns whose note is not there though it should be. They are in the pools with the value
    `lowest`, or with the pool's smallest reward where that is lower.

    Raises:
        ValueError: a reward is not finite.
    """
    missing = lost or [()] * len(rewards)
    told = [(i, turn, r) for i, by_turn in enumerate(rewards) for turn, r in by_turn.items() if turn not in missing[i]]
    known = finite([r for _, _, r in told], "reward of note")
    notes = [_Note(i, turn, known[n]) for n, (i, turn, _) in enumerate(told) if n in known]
    notes += [_Note(i, turn, None) for i, turns in enumerate(missing) for turn in sorted(turns)]
    by_turn: dict[int, list[_Note]] = {}
    for note in notes:
        by_turn.setdefault(note.turn, []).append(note)

    def pool_of(turn: int) -> int | None:
        """The turn, or None: the whole question."""
        own = pool == "turn" and (small_pool == "original" or len(by_turn[turn]) >= min_pool)
        return turn if own else None

    receivers: dict[int | None, list[_Note]] = {}
    for note in notes:
        receivers.setdefault(pool_of(note.turn), []).append(note)
    by_rollout: list[dict[int, float]] = [{} for _ in rewards]
    for turn, paid in receivers.items():
        values, worst = _values(notes if turn is None else by_turn[turn], lowest)
        if len(values) < (1 if small_pool == "original" else 2):
            continue
        for note in paid:
            value = worst if note.r is None else note.r
            if value is not None:
                by_rollout[note.rollout][note.turn] = weight * against(value, values, normalize_std, eps)
    given = sum(map(len, by_rollout))
    fallen = sum(pool == "turn" and pool_of(note.turn) is None for note in notes)
    return MemoryAdvantages(
        by_rollout=[dict(sorted(rollout.items())) for rollout in by_rollout],
        given=given,
        fallbacks=fallen if len(notes) > 1 else 0,
        no_signal=len(told) + sum(map(len, missing)) - given,
        lost=sum(turn in by_rollout[i] for i, turns in enumerate(missing) for turn in turns),
    )


def _values(notes: Sequence[_Note], lowest: float) -> tuple[list[float], float | None]:
    """The values of a pool, and that of a lost note in it: `lowest`, or the smallest reward where that is lower; None
    where neither is known."""
    known = [note.r for note in notes if note.r is not None]
    worst = min([lowest, *known])
    if math.isinf(worst):
        return known, None
    return known + [worst for note in notes if note.r is None], worst


def finite(values: Sequence[float | None], what: str) -> dict[int, float]:
    """Position -> float64 of the values that are known.

    Raises:
        ValueError: one is not a finite number.
    """
    known = {i: float(value) for i, value in enumerate(values) if value is not None}
    for i, value in known.items():
        if not math.isfinite(value):
            raise ValueError(f"{what} {i} is {value}; a value that is not known must be None")
    return known


def against(value: float, values: Sequence[float], normalize_std: bool, eps: float = EPS) -> float:
    """(value - mean of `values`) / (their unbiased std + eps); exactly 0 where all are equal. A lone value has mean 0
    and std 1, as in the original."""
    if len(values) == 1:
        return value / (1 + eps) if normalize_std else value
    if len(set(values)) < 2:  # the mean of equal floats need not be that float
        return 0.0
    centred = value - float(np.mean(values))
    return centred / (float(np.std(values, ddof=1)) + eps) if normalize_std else centred
