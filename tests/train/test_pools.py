"""Memory advantages by hand, by invariants, and against a naive implementation."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mempo.train.pools import memory_advantages


def test_one_pool_of_a_question_by_hand() -> None:
    found = memory_advantages([{1: 0.1, 2: 0.3}, {1: 0.2}, {}], pool="question")
    assert found.by_rollout == [pytest.approx({1: -1.0, 2: 1.0}, abs=1e-4), pytest.approx({1: 0.0}, abs=1e-9), {}]
    assert found.by_rollout[0][2] == pytest.approx(0.1 / (0.1 + 1e-6), rel=1e-12)
    [pool] = found.pools
    assert (pool.turn, pool.size, pool.mean, pool.std) == (None, 3, pytest.approx(0.2), pytest.approx(0.1))
    assert (found.given, found.fallbacks, found.no_signal) == (3, 0, 0)


def test_weight_and_mean_only() -> None:
    rewards: list[dict[int, float | None]] = [{1: 0.1}, {1: 0.3}, {1: 0.2}, {1: 0.4}]
    found = memory_advantages(rewards, normalize_std=False, weight=0.5)
    assert [a[1] for a in found.by_rollout] == pytest.approx([-0.075, 0.025, -0.025, 0.075])
    assert [a[1] for a in memory_advantages(rewards, weight=0.0).by_rollout] == [0.0] * 4


def drifting() -> list[dict[int, float | None]]:
    """16 rollouts, turns 2, 3, 4 with means -0.10, -0.22, -0.33; the spread within turns makes the pool's std 0.13."""
    means = {1: -0.10, 2: -0.22, 3: -0.33}
    centre = sum(means.values()) / 3
    between = 16 * sum((mean - centre) ** 2 for mean in means.values())
    spread = math.sqrt((47 * 0.13**2 - between) / 48)
    return [{t: mean + (spread if i % 2 else -spread) for t, mean in means.items()} for i in range(16)]


def test_drift_by_turn_in_one_pool_and_its_repair() -> None:
    rewards = drifting()

    def means(made: list[dict[int, float]]) -> list[float]:
        return [sum(rollout[t] for rollout in made) / 16 for t in (1, 2, 3)]

    pooled = memory_advantages(rewards, pool="question")
    assert pooled.pools[0].std == pytest.approx(0.13)
    assert means(pooled.by_rollout) == pytest.approx([0.90, -0.03, -0.87], abs=0.01)
    by_turn = memory_advantages(rewards, pool="turn")
    assert means(by_turn.by_rollout) == pytest.approx([0, 0, 0], abs=1e-9)
    assert [(p.turn, p.size) for p in by_turn.pools] == [(1, 16), (2, 16), (3, 16)]
    assert by_turn.fallbacks == 0


def test_a_small_pool_of_a_turn_falls_back_to_the_question() -> None:
    rewards: list[dict[int, float | None]] = [{1: 0.1}, {1: 0.2}, {1: 0.3}, {1: 0.4, 2: 0.9}]
    found = memory_advantages(rewards, normalize_std=False, min_pool=4)
    assert found.by_rollout[3] == pytest.approx({1: 0.15, 2: 0.9 - 1.9 / 5})
    assert found.by_rollout[0] == pytest.approx({1: -0.15})  # its own turn is large enough
    assert [(p.turn, p.size) for p in found.pools] == [(None, 5), (1, 4)]
    assert (found.given, found.fallbacks) == (5, 1)
    assert memory_advantages(rewards, min_pool=5).fallbacks == 5
    assert memory_advantages(rewards, min_pool=2).fallbacks == 1


@pytest.mark.parametrize("pool", ["question", "turn"])
def test_a_single_note_has_nothing_to_compare_with(pool: Any) -> None:
    found = memory_advantages([{}, {2: 0.7, 3: None}], pool=pool)
    assert found.by_rollout == [{}, {}]
    assert (found.given, found.small_pools, found.no_reward, found.no_signal) == (0, 1, 1, 2)
    assert found.fallbacks == 0


@pytest.mark.parametrize("pool", ["question", "turn"])
def test_the_original_pays_a_single_note_its_raw_reward(pool: Any) -> None:
    found = memory_advantages([{}, {2: 0.7}], pool=pool, small_pool="original")
    assert found.by_rollout == [{}, {2: pytest.approx(0.7, abs=1e-6)}]
    assert (found.given, found.no_signal) == (1, 0)


def test_the_original_never_falls_back() -> None:
    rewards: list[dict[int, float | None]] = [{1: 0.1, 2: 0.9}, {1: 0.3}]
    found = memory_advantages(rewards, pool="turn", small_pool="original", normalize_std=False)
    assert found.by_rollout == [pytest.approx({1: -0.1, 2: 0.9}), pytest.approx({1: 0.1})]


def test_equal_rewards_give_exactly_zero() -> None:
    for small_pool in ("no_signal", "original"):
        found = memory_advantages([{1: 0.35}] * 8, small_pool=small_pool)
        assert found.by_rollout == [{1: 0.0}] * 8


def test_notes_without_signal_enter_no_pool_and_get_nothing() -> None:
    rewards: list[dict[int, float | None]] = [{1: 0.2, 2: None}, {1: None}, {1: 0.4}, {1: 0.6}, {1: 0.8}]
    found = memory_advantages(rewards, normalize_std=False)
    assert found.by_rollout == [pytest.approx({1: a}) if a else {} for a in (-0.3, 0, -0.1, 0.1, 0.3)]
    assert (found.given, found.no_reward) == (4, 2)


def naive_memory(
    rewards: Sequence[Mapping[int, float | None]], pool: str, min_pool: int, eps: float, original: bool
) -> list[dict[int, float]]:
    """Each note for itself: collect its pool by looking at all notes, then mean and std in plain loops."""
    out: list[dict[int, float]] = []
    for rollout in rewards:
        row: dict[int, float] = {}
        for turn_index, r in rollout.items():
            if r is None:
                continue
            everything, same_turn = [], []
            for other in rewards:
                for t, value in other.items():
                    if value is not None:
                        everything.append(value)
                        if t == turn_index:
                            same_turn.append(value)
            mine = everything if pool == "question" else same_turn
            if not original:
                if len(mine) < min_pool:
                    mine = everything
                if len(mine) < 2:
                    continue
            mean, std = 0.0, 1.0
            if len(mine) > 1:
                mean = sum(mine) / len(mine)
                std = math.sqrt(sum((value - mean) ** 2 for value in mine) / (len(mine) - 1))
            row[turn_index] = (r - mean) / (std + eps)
        out.append(row)
    return out


REWARDS = st.lists(
    st.dictionaries(st.integers(1, 4), st.none() | st.floats(-1, 1, width=16), max_size=4), min_size=1, max_size=8
)


@given(REWARDS, st.sampled_from(["question", "turn"]), st.integers(2, 6), st.booleans())
def test_pools_agree_with_a_naive_implementation(
    rewards: list[dict[int, float | None]], pool: Any, min_pool: int, original: bool
) -> None:
    found = memory_advantages(
        rewards, pool=pool, min_pool=min_pool, eps=1e-6, small_pool="original" if original else "no_signal"
    )
    expected = naive_memory(rewards, pool, min_pool, 1e-6, original)
    # Rounding alone separates equal rewards in the naive sum; 1e-16 / 1e-6 is the scale of that.
    assert found.by_rollout == [pytest.approx(row, rel=1e-6, abs=1e-8) for row in expected]
    notes = [r for rollout in rewards for r in rollout.values()]
    assert found.given + found.small_pools + found.no_reward == len(notes)
    assert found.given == sum(map(len, expected))


@given(REWARDS, st.floats(-1, 1, width=16), st.randoms(use_true_random=False))
def test_pools_ignore_the_order_of_rollouts_and_a_common_shift(
    rewards: list[dict[int, float | None]], shift: float, rng: random.Random
) -> None:
    found = memory_advantages(rewards).by_rollout
    places = list(range(len(rewards)))
    rng.shuffle(places)
    shuffled = memory_advantages([rewards[i] for i in places]).by_rollout
    assert shuffled == [pytest.approx(found[i], abs=1e-8) for i in places]
    moved = memory_advantages([{t: None if r is None else r + shift for t, r in row.items()} for row in rewards])
    assert moved.by_rollout == [pytest.approx(row, rel=1e-6, abs=1e-6) for row in found]


def test_baseline_per_turn_depends_on_who_is_still_there() -> None:
    """Rollouts choose when to stop, so the baseline of a late turn is the mean of those that went on, not of the group:
    a known bias of `pool: turn` that the pool of the question does not have."""
    short: list[dict[int, float | None]] = [{1: 0.0}] * 4
    long: list[dict[int, float | None]] = [{1: 1.0, 2: 1.0}, {1: 1.0, 2: 1.0}, {1: 1.0, 2: 1.0}, {1: 1.0, 2: 0.6}]
    by_turn = memory_advantages(short + long, pool="turn", normalize_std=False)
    assert {p.turn: p.mean for p in by_turn.pools} == {1: pytest.approx(0.5), 2: pytest.approx(0.9)}
    assert by_turn.by_rollout[-1][2] == pytest.approx(-0.3)
    in_one_pool = memory_advantages(short + long, pool="question", normalize_std=False)
    assert in_one_pool.by_rollout[-1][2] == pytest.approx(0.6 - 7.6 / 12)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_rewards_that_are_no_numbers_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="reward of note 1 is"):
        memory_advantages([{1: 0.5}, {1: bad}])
