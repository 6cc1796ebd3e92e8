"""Pools of notes: from the memory rewards of one question's notes to their advantages.

A pool is a set of notes that are compared with each other; the advantage of a note is its reward less the pool's mean,
divided by a standard deviation: the pool's own, or for notes of one state that of their turn, since the few notes of a
state tell little about spread.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mempo.train.states import StateKeys

EPS = 1e-6
"""Added to a standard deviation before something is divided by it."""

NoteRewards = Mapping[int, float | None]
"""`{turn: r}` of one rollout; r None: the note gives no signal."""


@dataclass(frozen=True)
class Pool:
    """Rewards that are compared. `turn` None: all of the question's; `state` None: all of that turn. `mean`, `std`:
    None when they do not exist."""

    turn: int | None
    size: int
    mean: float | None
    std: float | None
    state: int | None = None


@dataclass(frozen=True)
class MemoryAdvantages:
    """Memory advantages of one question: `by_rollout` `[rollouts]{turn: A}`, notes without signal left out.

    Counts of notes: `given` have an advantage, `lost` of these are not there; `fallbacks` were compared in a larger
    pool because their own was too small; `small_pools` have a reward and no advantage, because no pool had two;
    `no_reward` had none at all.
    """

    by_rollout: list[dict[int, float]]
    pools: tuple[Pool, ...] = ()
    given: int = 0
    fallbacks: int = 0
    small_pools: int = 0
    no_reward: int = 0
    lost: int = 0

    @property
    def no_signal(self) -> int:
        return self.small_pools + self.no_reward


@dataclass(frozen=True)
class _Note:
    """A note to compare. `r` None: it is lost, and takes the lowest value of its pool."""

    rollout: int
    turn: int
    state: int | None
    r: float | None


_PoolName = tuple[int | None, int | None]  # turn and state, as in `Pool`


def memory_advantages(
    rewards: Sequence[NoteRewards],
    *,
    pool: Literal["question", "turn", "state"] = "turn",
    min_pool: int = 4,
    eps: float = EPS,
    normalize_std: bool = True,
    weight: float = 1.0,
    small_pool: Literal["no_signal", "original"] = "no_signal",
    std_floor: float = 0.0,
    states: Sequence[StateKeys] | None = None,
    siblings: Mapping[int, Sequence[float]] | None = None,
    lost: Sequence[Collection[int]] | None = None,
    lowest: float = math.inf,
) -> MemoryAdvantages:
    """Memory advantages of one question from the note rewards of its rollouts, `[rollouts]{turn: r}`.

    `pool: turn` compares notes of the same turn index; a turn with fewer than `min_pool` notes falls back to the pool
    of the whole question, else the only rollout that reaches turn t would be paid for running long. Where even that has
    fewer than two, there is no signal. `pool: state` compares notes that began with the same prompt (`states`, see
    `state_keys`), and divides by the spread of all notes of the turn; a state with fewer than `min_pool` notes falls
    back to its turn. `small_pool: original` never falls back and takes mean 0 and std 1 for a pool of one, so the raw
    reward becomes the advantage. No spread below `std_floor` is divided by.

    `siblings` `{state: rewards}`: of notes that belong to no rollout. They count in the pool of their state, and earn
    nothing. `lost` `[rollouts]`: turns whose note is not there though it should be. They are in the pools with the
    value `lowest`, or with the pool's smallest reward where that is lower.

    Raises:
        ValueError: a reward is not finite, or `pool` is state and `states` is missing.
    """
    if pool == "state" and states is None:
        raise ValueError("pool state compares notes by state, but no states were given")
    missing = lost or [()] * len(rewards)
    told = [(i, turn, r) for i, by_turn in enumerate(rewards) for turn, r in by_turn.items() if turn not in missing[i]]
    known = finite([r for _, _, r in told], "reward of note")

    def state(rollout: int, turn: int) -> int | None:
        return states[rollout].get(turn) if states is not None and pool == "state" else None

    notes = [_Note(i, turn, state(i, turn), known[n]) for n, (i, turn, _) in enumerate(told) if n in known]
    notes += [_Note(i, turn, state(i, turn), None) for i, turns in enumerate(missing) for turn in sorted(turns)]
    extra = {name: list(values) for name, values in (siblings or {}).items()}

    by_turn: dict[int, list[_Note]] = {}
    by_state: dict[int | None, list[_Note]] = {}
    for note in notes:
        by_turn.setdefault(note.turn, []).append(note)
        by_state.setdefault(note.state, []).append(note)

    def pool_of(note: _Note) -> _PoolName:
        if note.state is not None and len(by_state[note.state]) + len(extra.get(note.state, ())) >= min_pool:
            return by_state[note.state][0].turn, note.state
        if pool != "question" and (small_pool == "original" or len(by_turn[note.turn]) >= min_pool):
            return note.turn, None
        return None, None

    receivers: dict[_PoolName, list[_Note]] = {}
    for note in notes:
        receivers.setdefault(pool_of(note), []).append(note)
    by_rollout: list[dict[int, float]] = [{} for _ in rewards]
    pools: list[Pool] = []
    without_value = 0
    for (turn, of_state), paid in receivers.items():
        mates = notes if turn is None else by_turn[turn] if of_state is None else by_state[of_state]
        values, worst = _values(mates, lowest, () if of_state is None else extra.get(of_state, ()))
        pools.append(_pool(turn, of_state, values))
        if worst is None:
            without_value += sum(note.r is None for note in paid)
        if len(values) < (1 if small_pool == "original" else 2):
            continue
        for note in paid:
            value = worst if note.r is None else note.r
            if value is not None:
                wide = values if of_state is None else _values(by_turn[note.turn], lowest)[0]
                made = against(value, values, wide, normalize_std, eps, std_floor)
                by_rollout[note.rollout][note.turn] = weight * made
    given = sum(map(len, by_rollout))
    asked = {"question": 0, "turn": 1, "state": 2}[pool]
    got = [(turn is not None) + (of_state is not None) for turn, of_state in map(pool_of, notes)]
    return MemoryAdvantages(
        by_rollout=[dict(sorted(rollout.items())) for rollout in by_rollout],
        pools=tuple(sorted(pools, key=lambda p: tuple(-1 if n is None else n for n in (p.turn, p.state)))),
        given=given,
        fallbacks=sum(level < asked for level in got) if len(notes) > 1 else 0,
        small_pools=len(notes) - without_value - given,
        no_reward=len(told) - len(known) + without_value,
        lost=sum(turn in by_rollout[i] for i, turns in enumerate(missing) for turn in turns),
    )


def _values(notes: Sequence[_Note], lowest: float, siblings: Sequence[float] = ()) -> tuple[list[float], float | None]:
    """The values of a pool, and that of a lost note in it: `lowest`, or the smallest reward where that is lower; None
    where neither is known."""
    known = [note.r for note in notes if note.r is not None] + list(siblings)
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


def against(
    value: float,
    values: Sequence[float],
    wide: Sequence[float],
    normalize_std: bool,
    eps: float = EPS,
    std_floor: float = 0.0,
) -> float:
    """(value - mean of `values`) / (unbiased std of `wide` + eps), the std being at least `std_floor`.

    Exactly 0 where all values are equal. A lone value has mean 0 and std 1, as in the original. Where `wide` has no
    spread, that of `values` is taken.
    """
    if len(values) == 1:
        return value / (1 + eps) if normalize_std else value
    if len(set(values)) < 2:  # the mean of equal floats need not be that float
        return 0.0
    centred = value - float(np.mean(values))
    if not normalize_std:
        return centred
    spread = float(np.std(wide if len(set(wide)) > 1 else values, ddof=1))
    return centred / (max(spread, std_floor) + eps)


def _pool(turn: int | None, state: int | None, values: Sequence[float]) -> Pool:
    array = np.asarray(values, dtype=np.float64)
    return Pool(
        turn,
        len(values),
        float(array.mean()) if len(values) else None,
        float(array.std(ddof=1)) if len(values) > 1 else None,
        state,
    )
