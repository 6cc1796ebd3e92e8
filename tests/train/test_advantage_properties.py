"""What holds of the advantages of any group exactly, where the naive sums of `test_pools.py` round."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mempo.config.train import AdvantageSettings
from mempo.train.advantages import outcome_advantages
from mempo.train.pools import EPS, MemoryAdvantages, memory_advantages

Rewards = Sequence[Mapping[int, float | None]]

VALUE = st.integers(-64, 64).map(lambda n: n / 64)  # sums of these are exact
SCORES = st.lists(VALUE, min_size=2, max_size=8)
POOLS = st.sampled_from(["question", "turn"])
GROUPS = st.lists(st.dictionaries(st.integers(1, 4), st.none() | VALUE, max_size=4), min_size=1, max_size=8)


def known(rewards: Rewards) -> dict[tuple[int, int], float]:
    """`{(rollout, turn): r}` of the notes that have a reward."""
    return {(i, t): r for i, rollout in enumerate(rewards) for t, r in rollout.items() if r is not None}


def flat(made: MemoryAdvantages) -> dict[tuple[int, int], float]:
    return known(made.by_rollout)


def times(rewards: Rewards, factor: float) -> list[dict[int, float | None]]:
    return [{t: None if r is None else r * factor for t, r in rollout.items()} for rollout in rewards]


# --- scale and shift -----------------------------------------------------------------------------------------------


@given(SCORES, st.integers(-300, 300))
def test_a_common_shift_of_scores_changes_nothing(scores: list[float], shift: int) -> None:
    moved = outcome_advantages([score + shift / 64 for score in scores], AdvantageSettings())
    assert moved == pytest.approx(outcome_advantages(scores, AdvantageSettings()), rel=1e-9, abs=1e-9)


@given(SCORES, st.integers(-8, 8))
def test_scores_and_eps_on_another_scale_give_the_same_advantages(scores: list[float], power: int) -> None:
    factor = 2.0**power
    std = statistics.stdev(scores) if len(set(scores)) > 1 else 1.0
    moved_by = (std + EPS) / (std + EPS / factor)
    scaled = outcome_advantages([score * factor for score in scores], AdvantageSettings())
    assert scaled == pytest.approx([a * moved_by for a in outcome_advantages(scores, AdvantageSettings())], rel=1e-9)


@given(GROUPS, POOLS, st.integers(-8, 8))
def test_rewards_and_eps_on_another_scale_give_the_same_advantages(rewards: Rewards, pool: Any, power: int) -> None:
    factor = 2.0**power
    scaled = memory_advantages(times(rewards, factor), pool=pool, eps=1e-6 * factor)
    assert scaled.by_rollout == memory_advantages(rewards, pool=pool, eps=1e-6).by_rollout


# --- sums, sizes and order -----------------------------------------------------------------------------------------


@given(GROUPS, st.booleans())
def test_the_better_note_of_a_pool_never_gets_less(rewards: Rewards, normalize_std: bool) -> None:
    r = known(rewards)
    a = flat(memory_advantages(rewards, pool="question", normalize_std=normalize_std))
    assume(len(r) > 1)
    ordered = sorted(r, key=lambda place: r[place])
    for low, high in pairwise(ordered):
        assert a[low] <= a[high]
        assert (a[low] == a[high]) == (r[low] == r[high])


@given(SCORES)
def test_no_advantage_exceeds_what_one_outlier_can_have(scores: list[float]) -> None:
    n = len(scores)
    largest = max(abs(a) for a in outcome_advantages(scores, AdvantageSettings()))
    assert largest <= (n - 1) / math.sqrt(n) + 1e-9


@given(st.floats(-1e6, 1e6), st.integers(1, 9), st.integers(1, 5), POOLS, st.sampled_from(["no_signal", "original"]))
def test_equal_rewards_of_any_value_give_exactly_0(
    value: float, rollouts: int, turns: int, pool: Any, small_pool: Any
) -> None:
    assume(rollouts > 1)  # a pool of one is paid its raw reward by the original
    group = [dict.fromkeys(range(1, turns + 1), value)] * rollouts
    made = memory_advantages(group, pool=pool, small_pool=small_pool)
    assert set(flat(made).values()) == {0.0}
    assert made.given == rollouts * turns
    assert outcome_advantages([value] * rollouts, AdvantageSettings()) == [0.0] * rollouts


EXTREME = st.floats(-1e100, 1e100) | st.sampled_from([5e-324, -5e-324, 1e100, -1e100, 0.0, -0.0])


@given(st.lists(EXTREME, min_size=2, max_size=6), st.booleans(), st.sampled_from(["no_signal", "original"]))
def test_extreme_values_never_give_nan(values: list[float], normalize_std: bool, small_pool: Any) -> None:
    group = [{1: value, 2: -value} for value in values]
    for pool in ("question", "turn"):
        made = memory_advantages(group, pool=pool, normalize_std=normalize_std, small_pool=small_pool)
        assert len(flat(made)) == 2 * len(values)
        assert all(map(math.isfinite, flat(made).values()))
    assert all(map(math.isfinite, outcome_advantages(values, AdvantageSettings(normalize_std=normalize_std))))
