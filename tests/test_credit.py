"""Advantages by hand, by invariants, and against a naive implementation."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mempo.config.train import CreditSettings
from mempo.credit import EPS, checked_credit, memory_advantages, outcome_advantages, outcome_credit, token_advantages
from mempo.errors import UserError
from mempo.trajectory import rows_of
from tests.rewards.build import trajectory, turn

PLAIN = CreditSettings()
MEAN_ONLY = CreditSettings(normalize_std=False)


# --- outcome -------------------------------------------------------------------------------------------------------


def test_ten_right_of_sixteen() -> None:
    scores = [1, 0, 1, 1, 0, 1, 1, 0, 0, 1, 1, 1, 0, 1, 1, 0]
    credit = outcome_credit(scores, PLAIN)
    std = math.sqrt((10 * 0.375**2 + 6 * 0.625**2) / 15)  # n - 1
    assert credit.mean == 0.625
    assert credit.std == pytest.approx(std)
    right, wrong = 0.375 / (std + 1e-6), -0.625 / (std + 1e-6)
    assert credit.advantages == pytest.approx([right if score else wrong for score in scores])
    assert right == pytest.approx(0.75, abs=0.001)


def test_mean_only_is_the_variant_without_std() -> None:
    assert outcome_advantages([1, 0, 0, 0], MEAN_ONLY) == [0.75, -0.25, -0.25, -0.25]
    with_std = 0.5 / (0.5**0.5 + EPS)
    assert outcome_advantages([1, 0], PLAIN) == pytest.approx([with_std, -with_std], rel=1e-12)


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, 0.35, np.float32(0.35), np.float32(0.1)])
@pytest.mark.parametrize("n", [2, 3, 7, 8])
@pytest.mark.parametrize("settings", [PLAIN, MEAN_ONLY])
def test_equal_scores_give_exactly_zero(value: float, n: int, settings: CreditSettings) -> None:
    credit = outcome_credit([value] * n, settings)
    assert credit.advantages == [0.0] * n
    assert credit.zero_spread


def test_a_group_of_one_gets_0_and_a_warning_never_the_raw_reward() -> None:
    with pytest.warns(UserWarning, match="single scored rollout"):
        assert outcome_advantages([1.0], PLAIN) == [0.0]
    with pytest.warns(UserWarning, match="single scored rollout"):
        credit = outcome_credit([None, 1.0, None], PLAIN)
    assert (credit.advantages, credit.scored, credit.missing, credit.std) == ([0.0, 0.0, 0.0], 1, 2, None)


def test_the_warning_comes_once() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            outcome_advantages([1.0], PLAIN)
    assert len(caught) == 1


def test_a_missing_score_is_not_0() -> None:
    assert outcome_advantages([None, -1, -1, None], PLAIN) == [0.0, 0.0, 0.0, 0.0]
    # Doing nothing does not beat a failed try: the baseline of the others is theirs alone.
    assert outcome_advantages([None, 1, 0, None], MEAN_ONLY) == [0.0, 0.5, -0.5, 0.0]
    credit = outcome_credit([None, 1, 0, None], PLAIN)
    assert (credit.scored, credit.missing, credit.mean, credit.zero_spread) == (2, 2, 0.5, False)


def test_nothing_known_is_nothing_learnt() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for scores in ([], [None, None]):
            credit = outcome_credit(scores, PLAIN)
            assert credit.advantages == [0.0] * len(scores)
            assert (credit.mean, credit.std, credit.zero_spread) == (None, None, False)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_scores_that_are_no_numbers_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="score of rollout 1 is"):
        outcome_advantages([1.0, bad], PLAIN)
    with pytest.raises(ValueError, match="reward of note 1 is"):
        memory_advantages([{1: 0.5, 2: bad}])


SCORES = st.lists(st.none() | st.sampled_from([0.0, 1.0]) | st.floats(-5, 5, width=32), min_size=2, max_size=12)


@given(SCORES, st.randoms(use_true_random=False))
@pytest.mark.filterwarnings("ignore:a group has a single")
def test_outcome_advantages_ignore_order_and_missing_scores(scores: list[float | None], rng: random.Random) -> None:
    found = outcome_advantages(scores, PLAIN)
    assert sum(found) == pytest.approx(0, abs=1e-6)
    places = list(range(len(scores)))
    rng.shuffle(places)
    assert outcome_advantages([scores[i] for i in places], PLAIN) == pytest.approx([found[i] for i in places])
    known = [score for score in scores if score is not None]
    assert [a for a, s in zip(found, scores, strict=True) if s is not None] == outcome_advantages(known, PLAIN)
    assert all(a == 0 for a, s in zip(found, scores, strict=True) if s is None)


# --- memory --------------------------------------------------------------------------------------------------------


def test_one_pool_of_a_question_by_hand() -> None:
    credit = memory_advantages([{1: 0.1, 2: 0.3}, {1: 0.2}, {}], pool="question")
    assert credit.by_rollout == [pytest.approx({1: -1.0, 2: 1.0}, abs=1e-4), pytest.approx({1: 0.0}, abs=1e-9), {}]
    assert credit.by_rollout[0][2] == pytest.approx(0.1 / (0.1 + 1e-6), rel=1e-12)
    [pool] = credit.pools
    assert (pool.turn, pool.size, pool.mean, pool.std) == (None, 3, pytest.approx(0.2), pytest.approx(0.1))
    assert (credit.credited, credit.fallbacks, credit.no_signal) == (3, 0, 0)


def test_weight_and_mean_only() -> None:
    rewards: list[dict[int, float | None]] = [{1: 0.1}, {1: 0.3}, {1: 0.2}, {1: 0.4}]
    credit = memory_advantages(rewards, normalize_std=False, weight=0.5)
    assert [a[1] for a in credit.by_rollout] == pytest.approx([-0.075, 0.025, -0.025, 0.075])
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

    def means(credit: list[dict[int, float]]) -> list[float]:
        return [sum(rollout[t] for rollout in credit) / 16 for t in (1, 2, 3)]

    pooled = memory_advantages(rewards, pool="question")
    assert pooled.pools[0].std == pytest.approx(0.13)
    assert means(pooled.by_rollout) == pytest.approx([0.90, -0.03, -0.87], abs=0.01)
    by_turn = memory_advantages(rewards, pool="turn")
    assert means(by_turn.by_rollout) == pytest.approx([0, 0, 0], abs=1e-9)
    assert [(p.turn, p.size) for p in by_turn.pools] == [(1, 16), (2, 16), (3, 16)]
    assert by_turn.fallbacks == 0


def test_a_small_pool_of_a_turn_falls_back_to_the_question() -> None:
    rewards: list[dict[int, float | None]] = [{1: 0.1}, {1: 0.2}, {1: 0.3}, {1: 0.4, 2: 0.9}]
    credit = memory_advantages(rewards, normalize_std=False, min_pool=4)
    assert credit.by_rollout[3] == pytest.approx({1: 0.15, 2: 0.9 - 1.9 / 5})
    assert credit.by_rollout[0] == pytest.approx({1: -0.15})  # its own turn is large enough
    assert [(p.turn, p.size) for p in credit.pools] == [(None, 5), (1, 4)]
    assert (credit.credited, credit.fallbacks) == (5, 1)
    assert memory_advantages(rewards, min_pool=5).fallbacks == 5
    assert memory_advantages(rewards, min_pool=2).fallbacks == 1


@pytest.mark.parametrize("pool", ["question", "turn"])
def test_a_single_note_has_nothing_to_compare_with(pool: Any) -> None:
    credit = memory_advantages([{}, {2: 0.7, 3: None}], pool=pool)
    assert credit.by_rollout == [{}, {}]
    assert (credit.credited, credit.small_pools, credit.no_reward, credit.no_signal) == (0, 1, 1, 2)
    assert credit.fallbacks == 0


@pytest.mark.parametrize("pool", ["question", "turn"])
def test_the_original_pays_a_single_note_its_raw_reward(pool: Any) -> None:
    credit = memory_advantages([{}, {2: 0.7}], pool=pool, small_pool="original")
    assert credit.by_rollout == [{}, {2: pytest.approx(0.7, abs=1e-6)}]
    assert (credit.credited, credit.no_signal) == (1, 0)


def test_the_original_never_falls_back() -> None:
    rewards: list[dict[int, float | None]] = [{1: 0.1, 2: 0.9}, {1: 0.3}]
    credit = memory_advantages(rewards, pool="turn", small_pool="original", normalize_std=False)
    assert credit.by_rollout == [pytest.approx({1: -0.1, 2: 0.9}), pytest.approx({1: 0.1})]


def test_equal_rewards_give_exactly_zero() -> None:
    for small_pool in ("no_signal", "original"):
        credit = memory_advantages([{1: 0.35}] * 8, small_pool=small_pool)
        assert credit.by_rollout == [{1: 0.0}] * 8


def test_notes_without_signal_enter_no_pool_and_get_no_credit() -> None:
    rewards: list[dict[int, float | None]] = [{1: 0.2, 2: None}, {1: None}, {1: 0.4}, {1: 0.6}, {1: 0.8}]
    credit = memory_advantages(rewards, normalize_std=False)
    assert credit.by_rollout == [pytest.approx({1: a}) if a else {} for a in (-0.3, 0, -0.1, 0.1, 0.3)]
    assert (credit.credited, credit.no_reward) == (4, 2)


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
    credit = memory_advantages(
        rewards, pool=pool, min_pool=min_pool, eps=1e-6, small_pool="original" if original else "no_signal"
    )
    expected = naive_memory(rewards, pool, min_pool, 1e-6, original)
    # Rounding alone separates equal rewards in the naive sum; 1e-16 / 1e-6 is the scale of that.
    assert credit.by_rollout == [pytest.approx(row, rel=1e-6, abs=1e-8) for row in expected]
    notes = [r for rollout in rewards for r in rollout.values()]
    assert credit.credited + credit.small_pools + credit.no_reward == len(notes)
    assert credit.credited == sum(map(len, expected))


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


# --- tokens --------------------------------------------------------------------------------------------------------


def test_outcome_everywhere_and_memory_on_the_note() -> None:
    rollout = trajectory(turn(0, own=3), turn(1, own=6, note=(1, 4)), answer="x")
    found = token_advantages(rollout, 0.75, {1: 1.20})
    assert found == {0: [0.75] * 3, 1: pytest.approx([0.75, 1.95, 1.95, 1.95, 0.75, 0.75])}


def test_every_sampled_token_of_every_turn_carries_the_same_outcome() -> None:
    for score in (0.5, -0.5):
        rollout = trajectory(*(turn(t, own=n) for t, n in enumerate((2, 9, 4))), answer="x")
        found = token_advantages(rollout, score, {})
        assert found == {0: [score] * 2, 1: [score] * 9, 2: [score] * 4}
        assert sum(a != 0 for values in found.values() for a in values) == rollout.generated_tokens == 15


@pytest.mark.parametrize(
    ("forced", "note", "expected"),
    [
        (0, (0, 3), [2, 2, 2, 0, 0]),
        (1, (0, 3), [2, 2, 0, 0]),  # `<mem>` was forced: its token carries no credit
        (3, (0, 3), [0, 0]),
        (4, (0, 3), [0]),
        (2, (3, 5), [0, 2, 2]),
    ],
)
def test_spans_count_forced_tokens_and_credit_does_not(
    forced: int, note: tuple[int, int], expected: list[float]
) -> None:
    rollout = trajectory(turn(0), turn(1, own=5, note=note, forced=forced), answer="x")
    assert token_advantages(rollout, 0.0, {1: 2.0})[1] == expected


def test_credit_for_a_note_that_is_not_there_is_an_error() -> None:
    rollout = trajectory(turn(0), turn(1), answer="x")
    for memory in ({1: 1.0}, {7: 1.0}):
        with pytest.raises(ValueError, match=r"question q, rollout 0: memory advantages for turns"):
            token_advantages(rollout, 0.0, memory)


def test_each_rollout_counts_once_however_many_rows_it_has() -> None:
    """Scores 1, 0, 1, 0 with 2, 1, 2, 1 turns: six rows, baseline 1/2, not 4/6."""
    scores, turns = [1.0, 0.0, 1.0, 0.0], [2, 1, 2, 1]
    advantages = outcome_advantages(scores, MEAN_ONLY)
    assert advantages == [0.5, -0.5, 0.5, -0.5]
    rows = []
    for i, (n, advantage) in enumerate(zip(turns, advantages, strict=True)):
        rollout = trajectory(*(turn(t, own=3, seen=[7]) for t in range(n)), answer="x", rollout=i)
        by_turn = token_advantages(rollout, advantage, {})
        rows += [(i, row.spread(by_turn)) for row in rows_of(rollout, i)]
    assert len(rows) == 6
    for i, values in rows:
        # Two prompt tokens without credit, then three sampled ones with the rollout's own.
        assert values == [0.0, 0.0, *[advantages[i]] * 3]


def test_tool_tokens_get_nothing() -> None:
    first = turn(0, own=3, seen=range(10))
    prompt = (*first.prompt_ids, *first.own_ids, *range(10))
    rollout = trajectory(first, turn(1, own=2, note=(0, 1), prompt=prompt), answer="x")
    [row] = rows_of(rollout)
    values = row.spread(token_advantages(rollout, 0.75, {1: 1.20}))
    assert values == [0, 0, 0.75, 0.75, 0.75, *[0] * 10, pytest.approx(1.95), 0.75]


# --- own credit ----------------------------------------------------------------------------------------------------

GIVEN: tuple[list[float | None], list[dict[int, float | None]]] = ([1.0, None], [{1: 0.5}, {1: None, 2: 0.2}])


def test_own_credit_is_called_with_scores_and_notes() -> None:
    def credit(scores: Sequence[float | None], notes: Sequence[Mapping[int, float | None]]) -> Any:
        assert (scores, notes) == GIVEN
        return np.array([2.0, 0.0]), [{1: np.float32(0.5)}, {}]

    assert checked_credit(credit, *GIVEN) == ([2.0, 0.0], [{1: 0.5}, {}])


def test_own_credit_cannot_change_what_it_was_given() -> None:
    scores, notes = list(GIVEN[0]), [dict(rollout) for rollout in GIVEN[1]]

    def greedy(scores: Any, notes: Any) -> Any:
        scores.clear()
        notes[0].clear()
        return [0.0, 0.0], [{}, {}]

    checked_credit(greedy, scores, notes)
    assert (scores, notes) == GIVEN


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, "returned NoneType; it must return"),
        ([1.0], "returned list; it must return"),
        (([1.0], [{}, {}]), "returned 1 values as outcome advantages for 2 rollouts"),
        (([1.0, 0.0], [{}]), "returned 1 values as memory advantages for 2 rollouts"),
        ((1.0, [{}, {}]), "returned 1.0 as outcome advantages"),
        (([1.0, 0.0], {0: {}, 1: {}}), r"returned \{0: \{\}, 1: \{\}\} as memory advantages"),
        (([math.nan, 0.0], [{}, {}]), "returned nan as the outcome advantage of rollout 0"),
        ((["1", 0.0], [{}, {}]), "returned '1' as the outcome advantage of rollout 0"),
        (([None, 0.0], [{}, {}]), "returned None as the outcome advantage of rollout 0"),
        (([1.0, 0.1], [{}, {}]), r"gave rollout 1 the outcome advantage 0.1, but it has no score"),
        (([1.0, 0.0], [{1: math.inf}, {}]), "returned inf as the advantage of rollout 0, turn 1"),
        (([1.0, 0.0], [{2: 1.0}, {}]), r"gave rollout 0 memory credit for turns \[2\]; its scored notes are \[1\]"),
        (([1.0, 0.0], [[0.5], {}]), r"returned \[0.5\] as the memory advantages of rollout 0"),
    ],
)
def test_own_credit_that_makes_no_sense_is_refused_by_name(result: Any, message: str) -> None:
    def my_credit(scores: Any, notes: Any) -> Any:
        return result

    with pytest.raises(UserError, match=rf"credit function .*my_credit {message}"):
        checked_credit(my_credit, *GIVEN)


def test_settings() -> None:
    with pytest.raises(ValueError, match="did you mean 'normalize_std'"):
        CreditSettings.model_validate({"normalise_std": True})
