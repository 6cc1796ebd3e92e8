"""Memory advantages by hand, by invariants, and against a naive implementation."""

from __future__ import annotations

import math
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
    assert means(pooled.by_rollout) == pytest.approx([0.90, -0.03, -0.87], abs=0.01)
    by_turn = memory_advantages(rewards, pool="turn")
    assert means(by_turn.by_rollout) == pytest.approx([0, 0, 0], abs=1e-9)
    assert by_turn.fallbacks == 0


def test_a_small_pool_of_a_turn_falls_back_to_the_question() -> None:
    rewards: list[dict[int, float | None]] = [{1: 0.1}, {1: 0.2}, {1: 0.3}, {1: 0.4, 2: 0.9}]
    found = memory_advantages(rewards, normalize_std=False, min_pool=4)
    assert found.by_rollout[3] == pytest.approx({1: 0.15, 2: 0.9 - 1.9 / 5})
    assert found.by_rollout[0] == pytest.approx({1: -0.15})  # its own turn is large enough
    assert (found.given, found.fallbacks) == (5, 1)
    assert memory_advantages(rewards, min_pool=5).fallbacks == 5
    assert memory_advantages(rewards, min_pool=2).fallbacks == 1


@pytest.mark.parametrize("pool", ["question", "turn"])
def test_a_single_note_has_nothing_to_compare_with(pool: Any) -> None:
    found = memory_advantages([{}, {2: 0.7, 3: None}], pool=pool)
    assert found.by_rollout == [{}, {}]
    assert (found.given, found.no_signal, found.fallbacks) == (0, 2, 0)


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
    assert (found.given, found.no_signal) == (4, 2)


Rewards = Sequence[Mapping[int, float | None]]


def naive(
    rewards: Rewards, lost: Sequence[set[int]], pool: str, min_pool: int, original: bool, normalize_std: bool
) -> list[dict[int, float]]:
    """Each note for itself, in plain loops over all notes; a lost one is worth 0, or the least of its pool."""
    notes: list[tuple[int, int, float | None]] = []
    for i, by_turn in enumerate(rewards):
        notes += [(i, t, r) for t, r in by_turn.items() if r is not None]
        notes += [(i, t, None) for t in lost[i]]
    out: list[dict[int, float]] = [{} for _ in rewards]
    for i, turn_index, own in notes:
        everything = [r for _, _, r in notes]
        mine = everything if pool == "question" else [r for _, t, r in notes if t == turn_index]
        if not original:
            mine = mine if len(mine) >= min_pool else everything
            if len(mine) < 2:
                continue
        least = min([0.0, *(r for r in mine if r is not None)])
        values = [least if r is None else r for r in mine]
        mean, std = 0.0, 1.0
        if len(values) > 1:
            mean = sum(values) / len(values)
            std = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
        out[i][turn_index] = ((least if own is None else own) - mean) / (std + 1e-6 if normalize_std else 1)
    return out


@st.composite
def groups(draw: st.DrawFn) -> tuple[list[dict[int, float | None]], list[set[int]]]:
    value = st.none() | st.floats(-1, 1, width=16)
    rewards = draw(st.lists(st.dictionaries(st.integers(1, 4), value, max_size=4), min_size=1, max_size=8))
    some = draw(st.booleans())
    turns = st.integers(1, 4) if some else st.nothing()
    return rewards, [draw(st.sets(turns.filter(lambda t, row=row: t not in row))) for row in rewards]


@given(groups(), st.sampled_from(["question", "turn"]), st.integers(2, 6), st.booleans(), st.booleans())
def test_pools_agree_with_a_naive_implementation(
    group: tuple[Rewards, list[set[int]]], pool: Any, min_pool: int, original: bool, normalize_std: bool
) -> None:
    rewards, lost = group
    found = memory_advantages(
        rewards,
        pool=pool,
        min_pool=min_pool,
        small_pool="original" if original else "no_signal",
        normalize_std=normalize_std,
        weight=0.5,
        lost=lost,
        lowest=0.0,
    )
    expected = naive(rewards, lost, pool, min_pool, original, normalize_std)
    # Rounding alone separates equal rewards in the naive sum; 1e-16 / 1e-6 is the scale of that.
    halved = [{t: 0.5 * a for t, a in row.items()} for row in expected]
    assert found.by_rollout == [pytest.approx(row, rel=1e-6, abs=1e-8) for row in halved]
    assert found.given == sum(map(len, expected))
    assert found.given + found.no_signal == sum(map(len, rewards)) + sum(map(len, lost))
    assert found.lost == sum(t in found.by_rollout[i] for i, turns in enumerate(lost) for t in turns)


def test_baseline_per_turn_depends_on_who_is_still_there() -> None:
    """Rollouts choose when to stop, so the baseline of a late turn is the mean of those that went on, not of the group:
    a known bias of `pool: turn` that the pool of the question does not have."""
    short: list[dict[int, float | None]] = [{1: 0.0}] * 4
    long: list[dict[int, float | None]] = [{1: 1.0, 2: 1.0}, {1: 1.0, 2: 1.0}, {1: 1.0, 2: 1.0}, {1: 1.0, 2: 0.6}]
    by_turn = memory_advantages(short + long, pool="turn", normalize_std=False)
    assert by_turn.by_rollout[-1][2] == pytest.approx(-0.3)
    in_one_pool = memory_advantages(short + long, pool="question", normalize_std=False)
    assert in_one_pool.by_rollout[-1][2] == pytest.approx(0.6 - 7.6 / 12)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_rewards_that_are_no_numbers_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="reward of note 1 is"):
        memory_advantages([{1: 0.5}, {1: bad}])
