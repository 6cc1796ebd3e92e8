"""Outcome advantages by hand and by invariants, and how advantages are laid out on training rows."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mempo.config.train import AdvantageSettings
from mempo.rollout.trajectory import Trajectory, rows_of
from mempo.train.advantages import outcome_advantages, row_advantages
from tests.rewards.build import trajectory, turn

PLAIN = AdvantageSettings()
MEAN_ONLY = AdvantageSettings(normalize_std=False)


# --- outcome -------------------------------------------------------------------------------------------------------


def test_ten_right_of_sixteen() -> None:
    scores = [1, 0, 1, 1, 0, 1, 1, 0, 0, 1, 1, 1, 0, 1, 1, 0]
    found = outcome_advantages(scores, PLAIN)
    std = math.sqrt((10 * 0.375**2 + 6 * 0.625**2) / 15)  # n - 1
    right, wrong = 0.375 / (std + 1e-6), -0.625 / (std + 1e-6)
    assert found == pytest.approx([right if score else wrong for score in scores])
    assert right == pytest.approx(0.75, abs=0.001)


def test_mean_only_is_the_variant_without_std() -> None:
    assert outcome_advantages([1, 0, 0, 0], MEAN_ONLY) == [0.75, -0.25, -0.25, -0.25]


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, 0.35, np.float32(0.35), np.float32(0.1)])
@pytest.mark.parametrize("n", [2, 3, 7, 8])
@pytest.mark.parametrize("settings", [PLAIN, MEAN_ONLY])
def test_equal_scores_give_exactly_zero(value: float, n: int, settings: AdvantageSettings) -> None:
    found = outcome_advantages([value] * n, settings)
    assert found == [0.0] * n


def test_a_group_of_one_gets_0_and_a_warning_never_the_raw_reward() -> None:
    with pytest.warns(UserWarning, match="single scored rollout"):
        found = outcome_advantages([1.0], PLAIN)
    assert found == [0.0]


def test_the_warning_comes_once() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            outcome_advantages([1.0], PLAIN)
    assert len(caught) == 1


def test_a_group_of_none_is_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = outcome_advantages([], PLAIN)
    assert found == []


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_scores_that_are_no_numbers_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="score of rollout 1 is"):
        outcome_advantages([1.0, bad], PLAIN)


SCORES = st.lists(st.sampled_from([0.0, 1.0]) | st.floats(-5, 5, width=32), min_size=2, max_size=12)


@given(SCORES, st.randoms(use_true_random=False))
def test_outcome_advantages_ignore_order(scores: list[float], rng: random.Random) -> None:
    found = outcome_advantages(scores, PLAIN)
    assert sum(found) == pytest.approx(0, abs=1e-6)
    places = list(range(len(scores)))
    rng.shuffle(places)
    assert outcome_advantages([scores[i] for i in places], PLAIN) == pytest.approx([found[i] for i in places])


# --- tokens --------------------------------------------------------------------------------------------------------


def by_turn(rollout: Trajectory, outcome: float, memory: Mapping[int, float]) -> dict[int, list[float]]:
    """What the rows carry on their generated tokens."""
    found = {}
    for row in rows_of(rollout):
        values = row_advantages(rollout, row, outcome, memory)
        inside = {i for s in row.segments for i in range(s.start, s.stop)}
        assert not any(value for i, value in enumerate(values) if i not in inside)
        found |= {s.turn: values[s.start : s.stop] for s in row.segments}
    return found


def test_outcome_everywhere_and_memory_on_the_note() -> None:
    rollout = trajectory(turn(0, own=3), turn(1, own=6, note=(1, 4)), answer="x")
    found = by_turn(rollout, 0.75, {1: 1.20})
    assert found == {0: [0.75] * 3, 1: pytest.approx([0.75, 1.95, 1.95, 1.95, 0.75, 0.75])}


def test_every_sampled_token_of_every_turn_carries_the_same_outcome() -> None:
    for score in (0.5, -0.5):
        rollout = trajectory(*(turn(t, own=n) for t, n in enumerate((2, 9, 4))), answer="x")
        found = by_turn(rollout, score, {})
        assert found == {0: [score] * 2, 1: [score] * 9, 2: [score] * 4}
        assert sum(a != 0 for values in found.values() for a in values) == rollout.generated_tokens == 15


@pytest.mark.parametrize(
    ("forced", "note", "expected"),
    [
        (0, (0, 3), [2, 2, 2, 0, 0]),
        (1, (0, 3), [2, 2, 0, 0]),  # `<mem>` was forced: its token carries none
        (3, (0, 3), [0, 0]),
        (4, (0, 3), [0]),
        (2, (3, 5), [0, 2, 2]),
    ],
)
def test_spans_count_forced_tokens_and_advantages_do_not(
    forced: int, note: tuple[int, int], expected: list[float]
) -> None:
    rollout = trajectory(turn(0), turn(1, own=5, note=note, forced=forced), answer="x")
    assert by_turn(rollout, 0.0, {1: 2.0})[1] == expected


def test_an_advantage_for_a_turn_that_is_not_there_is_an_error() -> None:
    rollout = trajectory(turn(0), turn(1), answer="x")
    with pytest.raises(ValueError, match=r"question q, rollout 0: memory advantages for turns \[7\] of 2"):
        by_turn(rollout, 0.0, {7: 1.0})


def test_a_lost_note_is_paid_on_all_that_the_turn_generated() -> None:
    rollout = trajectory(turn(0, own=2), turn(1, own=4, forced=1), turn(2, own=4, note=(0, 2)), answer="x")
    assert by_turn(rollout, 0.5, {1: -2.0, 2: 1.0}) == {0: [0.5] * 2, 1: [-1.5] * 3, 2: [1.5, 1.5, 0.5, 0.5]}


def test_tool_tokens_get_nothing() -> None:
    first = turn(0, own=3, seen=range(10))
    prompt = (*first.prompt_ids, *first.own_ids, *range(10))
    rollout = trajectory(first, turn(1, own=2, note=(0, 1), prompt=prompt), answer="x")
    [row] = rows_of(rollout)
    values = row_advantages(rollout, row, 0.75, {1: 1.20})
    assert values == [0, 0, 0.75, 0.75, 0.75, *[0] * 10, pytest.approx(1.95), 0.75]
