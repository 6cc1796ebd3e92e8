"""Pools of notes: from the memory rewards of one question's notes to their advantages.

A pool is a set of notes that are compared with each other; the advantage of a note is its reward less the pool's mean,
divided by the pool's standard deviation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

EPS = 1e-6
"""Added to a standard deviation before something is divided by it."""

NoteRewards = Mapping[int, float | None]
"""`{turn: r}` of one rollout; r None: the note gives no signal."""


@dataclass(frozen=True)
class Pool:
    """Rewards normalised together. `turn` None: all of the question's. `mean`, `std`: None when they do not exist."""

    turn: int | None
    size: int
    mean: float | None
    std: float | None


@dataclass(frozen=True)
class MemoryAdvantages:
    """Memory advantages of one question: `by_rollout` `[rollouts]{turn: A}`, notes without signal left out.

    Counts of notes: `given` have an advantage; `fallbacks` of them through the question's pool because their turn's
    was too small; `small_pools` have a reward and no advantage, because no pool had two; `no_reward` had none at all.
    """

    by_rollout: list[dict[int, float]]
    pools: tuple[Pool, ...] = ()
    given: int = 0
    fallbacks: int = 0
    small_pools: int = 0
    no_reward: int = 0

    @property
    def no_signal(self) -> int:
        return self.small_pools + self.no_reward


def memory_advantages(
    rewards: Sequence[NoteRewards],
    *,
    pool: Literal["question", "turn"] = "turn",
    min_pool: int = 4,
    eps: float = EPS,
    normalize_std: bool = True,
    weight: float = 1.0,
    small_pool: Literal["no_signal", "original"] = "no_signal",
) -> MemoryAdvantages:
    """Memory advantages of one question from the note rewards of its rollouts, `[rollouts]{turn: r}`.

    `pool: turn` compares notes of the same turn index; a turn with fewer than `min_pool` rewards falls back to the pool
    of the whole question, else the only rollout that reaches turn t would be paid for running long. Where even that has
    fewer than two, there is no signal. `small_pool: original` never falls back and takes mean 0 and std 1 for a pool of
    one, so the raw reward becomes the advantage.

    Raises:
        ValueError: a reward is not finite.
    """
    notes = [(i, turn, r) for i, rollout in enumerate(rewards) for turn, r in rollout.items()]
    known = finite([r for _, _, r in notes], "reward of note")
    members: dict[int | None, list[int]] = {}  # pool -> positions in `notes`
    fallbacks = 0
    for n in known:
        members.setdefault(None if pool == "question" else notes[n][1], []).append(n)
    if pool == "turn" and small_pool != "original":
        small = [turn for turn, found in members.items() if len(found) < min_pool]
        fallbacks = sum(len(members[turn]) for turn in small)
    else:
        small = []

    by_rollout: list[dict[int, float]] = [{} for _ in rewards]
    pools: list[Pool] = []

    def give(turn: int | None, pooled: list[int], receivers: list[int]) -> None:
        values = [known[n] for n in pooled]
        pools.append(_pool(turn, values))
        if len(values) < 2 and small_pool != "original":
            return
        made = dict(zip(pooled, _pool_standardized(values, normalize_std, eps), strict=True))
        for n in receivers:
            rollout, note_turn, _ = notes[n]
            by_rollout[rollout][note_turn] = weight * made[n]

    for turn, found in members.items():
        if turn not in small:
            give(turn, found, found)
    if small:
        give(None, list(known), [n for turn in small for n in members[turn]])
    given = sum(map(len, by_rollout))
    return MemoryAdvantages(
        by_rollout=[dict(sorted(rollout.items())) for rollout in by_rollout],
        pools=tuple(sorted(pools, key=lambda p: -1 if p.turn is None else p.turn)),
        given=given,
        fallbacks=fallbacks if len(known) > 1 else 0,
        small_pools=len(known) - given,
        no_reward=len(notes) - len(known),
    )


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


def standardized(values: Sequence[float], normalize_std: bool, eps: float = EPS) -> list[float]:
    """(value - mean) / (unbiased std + eps); exactly 0 for fewer than two values and for equal ones."""
    if len(set(values)) < 2:  # the mean of equal floats need not be that float
        return [0.0] * len(values)
    array = np.asarray(values, dtype=np.float64)
    centred = array - array.mean()
    return (centred / (array.std(ddof=1) + eps) if normalize_std else centred).tolist()


def _pool_standardized(values: Sequence[float], normalize_std: bool, eps: float = EPS) -> list[float]:
    """As `standardized`, but a pool of one has mean 0 and std 1, as in the original."""
    if len(values) == 1:
        return [values[0] / (1 + eps) if normalize_std else values[0]]
    return standardized(values, normalize_std, eps)


def _pool(turn: int | None, values: Sequence[float]) -> Pool:
    array = np.asarray(values, dtype=np.float64)
    return Pool(
        turn,
        len(values),
        float(array.mean()) if len(values) else None,
        float(array.std(ddof=1)) if len(values) > 1 else None,
    )
