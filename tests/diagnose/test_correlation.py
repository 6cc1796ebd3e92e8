"""Correlation within pools, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from mempo.diagnose.correlation import correlations, note_points
from mempo.diagnose.faithfulness import faith_of
from mempo.diagnose.numbers import correlation_within
from tests.diagnose.build import batch, rollout, turn


def test_one_pool_is_pearson() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 50))
    value, count = correlation_within([0] * 50, x, y)
    assert count == 50
    assert value == pytest.approx(np.corrcoef(x, y)[0, 1])


def test_what_differs_between_pools_makes_no_correlation() -> None:
    # Across pools r and score rise together; within each they fall.
    pools = ["easy"] * 3 + ["hard"] * 3
    xs = [10.0, 11.0, 12.0, 0.0, 1.0, 2.0]
    ys = [9.0, 8.0, 7.0, 2.0, 1.0, 0.0]
    assert np.corrcoef(xs, ys)[0, 1] > 0.9
    assert correlation_within(pools, xs, ys) == (pytest.approx(-1.0), 6)


def test_what_does_not_vary_has_none() -> None:
    third = 1 / 3
    assert correlation_within([0] * 3, [third] * 3, [1.0, 2.0, 3.0]) == (None, 3)
    assert correlation_within([0, 1, 2], [1.0, 2.0, 3.0], [1.0, 2.0, 3.0]) == (None, 0)
    assert correlation_within([0] * 4, [1.0, None, 2.0, 3.0], [1.0, 5.0, None, 2.0]) == (None, 2)
    assert correlation_within([], [], []) == (None, 0)


def test_tiny_rewards_correlate_like_large_ones() -> None:
    xs = [1e-9, 2e-9, 3e-9]
    assert correlation_within([0] * 3, xs, [0.0, 0.5, 1.0]) == (pytest.approx(1.0), 3)


def test_notes_by_hand() -> None:
    said = "Paris is in France"
    group = [
        rollout(turn(said=said), turn("Paris", r=0.9, advantage=1.0), score=1.0),
        rollout(turn(said=said), turn("Paris x y", r=0.7, advantage=-0.2), score=1.0),
        rollout(turn(said=said), turn("Rome", r=0.1, advantage=-0.8), score=0.0),
        rollout(turn(said=said), turn("Rome", reason="nan"), score=0.0),
        rollout(turn(said=said), turn("Rome", r=0.2), score=None),
    ]
    made = batch(group)
    points = note_points(made, faith_of(made))
    assert [point.r for point in points] == [0.9, 0.7, 0.1, 0.2]
    found = correlations(points)
    assert found.outcome == pytest.approx(np.corrcoef([0.9, 0.7, 0.1], [1, 1, 0])[0, 1])
    assert found.outcome_notes == 3
    assert found.length == pytest.approx(np.corrcoef([0.9, 0.7, 0.1, 0.2], [1, 3, 1, 1])[0, 1])
    assert found.completeness == pytest.approx(np.corrcoef([0.9, 0.7, 0.1, 0.2], [1, 1, 0, 0])[0, 1])
    # Two complete notes, two incomplete ones of equal length: only the first two can tell.
    assert (found.length_alike, found.length_alike_notes) == (pytest.approx(-0.8944, abs=1e-4), 4)
    assert found.complete_punished == 0.5
    assert found.alike_share == 0.0


def test_credit_where_all_notes_hold_the_same_is_for_wording() -> None:
    said = "Paris is in France"
    alike = [rollout(turn(said=said), turn("Paris", r=r, advantage=a)) for r, a in ((0.1, -1.0), (0.2, 1.0))]
    mixed = [
        rollout(turn(said=said), turn(note, r=r, advantage=a), question="other")
        for note, r, a in (("Paris", 0.3, 0.5), ("Rome", 0.1, -0.5))
    ]
    made = batch(alike, mixed)
    found = correlations(note_points(made, faith_of(made)))
    assert found.alike_share == pytest.approx(2 / 3)
    assert found.complete_punished == 0.0  # the complete note that lost credit stood beside its equals
