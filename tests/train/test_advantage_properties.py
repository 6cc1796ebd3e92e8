"""What holds of the advantages of any group: about scale, sums, order, rollouts without a reward, and small pools."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mempo.config.train import AdvantageSettings
from mempo.train import advantages
from mempo.train.pools import EPS, MemoryAdvantages, memory_advantages

Rewards = Sequence[Mapping[int, float | None]]

VALUE = st.integers(-64, 64).map(lambda n: n / 64)  # sums of these are exact
SCORES = st.lists(VALUE, min_size=2, max_size=8)
POOLS = st.sampled_from(["question", "turn"])
GROUPS = st.lists(st.dictionaries(st.integers(1, 4), st.none() | VALUE, max_size=4), min_size=1, max_size=8)


def known(rewards: Rewards) -> dict[tuple[int, int], float]:
    """`{(rollout, turn): r}` of the notes that have a reward."""
    return {(i, t): r for i, rollout in enumerate(rewards) for t, r in rollout.items() if r is not None}


def outcome_advantages(scores: Sequence[float], settings: AdvantageSettings) -> list[float]:
    return advantages.outcome_advantages(scores, settings).values


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


@given(GROUPS, POOLS, st.floats(0.01, 100))
def test_without_eps_the_scale_of_rewards_does_not_matter(rewards: Rewards, pool: Any, factor: float) -> None:
    plain = memory_advantages(rewards, pool=pool, eps=1e-15)
    scaled = memory_advantages(times(rewards, factor), pool=pool, eps=1e-15)
    assert flat(scaled) == pytest.approx(flat(plain), rel=1e-9, abs=1e-9)


@given(GROUPS, POOLS, st.booleans())
def test_rewards_turned_around_turn_the_advantages_around(rewards: Rewards, pool: Any, normalize_std: bool) -> None:
    plain = flat(memory_advantages(rewards, pool=pool, normalize_std=normalize_std))
    turned = flat(memory_advantages(times(rewards, -1), pool=pool, normalize_std=normalize_std))
    assert turned == pytest.approx({place: -a for place, a in plain.items()}, rel=1e-9, abs=1e-9)


@given(GROUPS, POOLS, st.floats(0, 10))
def test_weight_is_a_plain_factor(rewards: Rewards, pool: Any, weight: float) -> None:
    plain = flat(memory_advantages(rewards, pool=pool))
    weighted = flat(memory_advantages(rewards, pool=pool, weight=weight))
    assert weighted == {place: weight * a for place, a in plain.items()}


# --- sums, sizes and order -----------------------------------------------------------------------------------------


@given(GROUPS, st.booleans())
def test_the_advantages_of_a_question_have_mean_0_and_std_1(rewards: Rewards, normalize_std: bool) -> None:
    made = memory_advantages(rewards, pool="question", normalize_std=normalize_std)
    values = list(flat(made).values())
    assert sum(values) == pytest.approx(0, abs=1e-9)
    if normalize_std and any(values):
        [pool] = made.pools
        assert pool.std is not None
        std = math.sqrt(sum(a * a for a in values) / (len(values) - 1))
        assert std == pytest.approx(pool.std / (pool.std + 1e-6))


@given(GROUPS)
def test_the_advantages_of_each_turn_have_mean_0(rewards: Rewards) -> None:
    made = memory_advantages(rewards, pool="turn", min_pool=2)
    sizes = {pool.turn: pool.size for pool in made.pools}
    by_turn: dict[int, list[float]] = {}
    for (_, t), a in flat(made).items():
        by_turn.setdefault(t, []).append(a)
    for t, values in by_turn.items():
        assert t in sizes or len(values) == 1  # alone in its turn, it fell back
        if t in sizes:
            assert len(values) == sizes[t]
            assert sum(values) == pytest.approx(0, abs=1e-9)


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


@given(GROUPS, POOLS)
def test_without_std_differences_of_rewards_stay(rewards: Rewards, pool: Any) -> None:
    r = known(rewards)
    made = memory_advantages(rewards, pool=pool, min_pool=2, normalize_std=False)
    a = flat(made)
    own_pool = {p.turn for p in made.pools}
    for one in a:
        for other in a:
            if pool == "question" or (one[1] == other[1] and one[1] in own_pool):
                assert a[one] - a[other] == pytest.approx(r[one] - r[other], abs=1e-12)


@given(SCORES)
def test_without_std_differences_of_scores_stay(scores: list[float]) -> None:
    a = outcome_advantages(scores, AdvantageSettings(normalize_std=False))
    assert [x - a[0] for x in a] == pytest.approx([s - scores[0] for s in scores], abs=1e-12)


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


# --- who is in a pool ----------------------------------------------------------------------------------------------


@given(GROUPS, POOLS, st.integers(2, 6), st.booleans())
def test_notes_without_a_reward_leave_the_others_as_they_are(
    rewards: Rewards, pool: Any, min_pool: int, original: bool
) -> None:
    options: dict[str, Any] = {
        "pool": pool,
        "min_pool": min_pool,
        "small_pool": "original" if original else "no_signal",
    }
    with_them = memory_advantages(rewards, **options)
    without = memory_advantages([{t: r for t, r in rollout.items() if r is not None} for rollout in rewards], **options)
    assert with_them.by_rollout == without.by_rollout
    assert with_them.pools == without.pools
    assert with_them.no_reward - without.no_reward == sum(r is None for rollout in rewards for r in rollout.values())


@given(GROUPS, POOLS, st.integers(0, 3), st.randoms(use_true_random=False))
def test_rollouts_without_notes_change_nothing(rewards: Rewards, pool: Any, silent: int, rng: random.Random) -> None:
    padded: list[Mapping[int, float | None]] = list(rewards)
    places = list(range(len(rewards)))
    for _ in range(silent):
        at = rng.randint(0, len(padded))
        padded.insert(at, rng.choice([{}, {1: None}, {1: None, 2: None, 9: None}]))
        places = [place + (place >= at) for place in places]
    made = memory_advantages(padded, pool=pool)
    assert [made.by_rollout[place] for place in places] == memory_advantages(rewards, pool=pool).by_rollout
    assert made.given == sum(len(made.by_rollout[place]) for place in places)


@given(GROUPS, st.integers(2, 4), st.booleans())
def test_a_turn_that_is_large_enough_is_a_question_of_its_own(
    rewards: Rewards, min_pool: int, normalize_std: bool
) -> None:
    by_turn = memory_advantages(rewards, pool="turn", min_pool=min_pool, normalize_std=normalize_std)
    pooled = memory_advantages(rewards, pool="question", normalize_std=normalize_std)
    small = []
    for t in range(1, 5):
        alone = [{u: r for u, r in rollout.items() if u == t} for rollout in rewards]
        if len(known(alone)) >= min_pool:
            expected = memory_advantages(alone, pool="question", normalize_std=normalize_std)
            assert [rollout.get(t) for rollout in by_turn.by_rollout] == [r.get(t) for r in expected.by_rollout]
        else:
            small += list(known(alone))
            # Too small: what the question's pool gives, to these notes alone.
            assert [rollout.get(t) for rollout in by_turn.by_rollout] == [r.get(t) for r in pooled.by_rollout]
    assert by_turn.fallbacks == (len(small) if len(known(rewards)) > 1 else 0)
    assert (None in {pool.turn for pool in by_turn.pools}) == bool(small)


@given(GROUPS, POOLS)
def test_small_pools_of_the_original(rewards: Rewards, pool: Any) -> None:
    """One number: mean 0, std 1. Two or more: as anywhere else. Nothing falls back, and no reward goes without."""
    r = known(rewards)
    made = memory_advantages(rewards, pool=pool, small_pool="original")
    assert flat(made).keys() == r.keys()
    assert (made.fallbacks, made.small_pools) == (0, 0)
    ordinary = flat(memory_advantages(rewards, pool=pool, min_pool=2))
    for place, a in flat(made).items():
        mates = [other for other in r if pool == "question" or other[1] == place[1]]
        if len(mates) == 1:
            assert a == r[place] / (1 + 1e-6)
        else:
            assert a == ordinary[place]


@given(GROUPS, st.integers(2, 3))
def test_the_mean_does_not_depend_on_how_often_all_rollouts_are_there(rewards: Rewards, copies: int) -> None:
    assume(len(known(rewards)) > 1)
    once = memory_advantages(rewards, pool="question", normalize_std=False)
    often = memory_advantages(list(rewards) * copies, pool="question", normalize_std=False)
    assert often.by_rollout == [pytest.approx(rollout, abs=1e-12) for rollout in once.by_rollout * copies]
