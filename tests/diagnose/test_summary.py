"""Metrics over many notes: the drift by turn that pooling makes, and what r goes with, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mempo.diagnose.notes import notes_of
from mempo.diagnose.numbers import correlation_within
from mempo.diagnose.records import Batch
from mempo.diagnose.summary import by_turn, correlations, drift
from tests.diagnose.build import MEANS, batch, published, rollout, turn


def turns_of(made: Batch, min_pool: int = 4) -> list[dict[str, Any]]:
    return by_turn(made, notes_of(made, min_pool))


def test_pooling_a_question_rewards_early_turns_and_pooling_a_turn_does_not() -> None:
    turns = turns_of(published())
    rewards = [note.signal.r for note in notes_of(published())]
    assert np.std(rewards, ddof=1) == pytest.approx(0.13)  # type: ignore[arg-type]
    assert [t["turn"] for t in turns] == [2, 3, 4]
    assert [t["r"] for t in turns] == pytest.approx(MEANS)
    assert [t["advantage_question"] for t in turns] == pytest.approx([0.90, -0.03, -0.87], abs=0.005)
    assert [t["advantage_turn"] for t in turns] == pytest.approx([0, 0, 0], abs=1e-9)
    assert drift(turns, "advantage_question") == pytest.approx(1.77, abs=0.01)
    assert drift(turns, "advantage_turn") == pytest.approx(0, abs=1e-9)


def test_each_question_is_standardised_by_itself() -> None:
    easy = [rollout(turn(), turn("n", r=r), question="easy") for r in (0.8, 0.9)]
    hard = [rollout(turn(), turn("n", r=r), question="hard") for r in (0.1, 0.2)]
    (only,) = turns_of(batch(easy, hard), min_pool=2)
    assert only["advantage_turn"] == pytest.approx(0)
    assert only["r"] == pytest.approx(0.5)
    assert only["r_std"] == pytest.approx(np.std([0.8, 0.9, 0.1, 0.2], ddof=1))


def test_counts_and_what_is_not_known() -> None:
    made = batch(
        [
            rollout(turn(), turn("a b", r=0.5, p_mem=0.5, p_mem_raw=0.4, advantage=2.0), turn()),
            rollout(turn(), turn("a", reason="nan")),
            rollout(turn("first")),
        ]
    )
    second, third = turns_of(made)
    assert [second[name] for name in ("rollouts", "notes", "scored", "with_advantage")] == [2, 2, 1, 1]
    assert [second[name] for name in ("p_mem", "p_mem_raw", "p_baseline", "advantage")] == [0.5, 0.4, None, 2.0]
    assert second["note_tokens"] == 1.5
    assert second["r_std"] is None
    assert (third["rollouts"], third["notes"]) == (1, 0)
    assert (third["r"], third["advantage_turn"], third["note_tokens"]) == (None, None, None)


def test_a_turn_with_few_notes_makes_no_drift() -> None:
    rollouts = [rollout(turn(), turn("n", r=0.1 * i, advantage=1.0)) for i in range(8)]
    rollouts[0] = rollout(turn(), turn("n", r=0.0, advantage=1.0), turn("n", r=5.0, advantage=9.0))
    assert drift(turns_of(batch(rollouts)), "advantage") is None
    assert turns_of(batch()) == []
    assert drift([], "r") is None


def test_one_pool_is_pearson() -> None:
    x, y = np.random.default_rng(0).normal(size=(2, 50))
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


def test_what_does_not_vary_has_no_correlation_and_tiny_rewards_correlate_like_large_ones() -> None:
    third = 1 / 3
    assert correlation_within([0] * 3, [third] * 3, [1.0, 2.0, 3.0]) == (None, 3)
    assert correlation_within([0, 1, 2], [1.0, 2.0, 3.0], [1.0, 2.0, 3.0]) == (None, 0)
    assert correlation_within([0] * 4, [1.0, None, 2.0, 3.0], [1.0, 5.0, None, 2.0]) == (None, 2)
    assert correlation_within([], [], []) == (None, 0)
    assert correlation_within([0] * 3, [1e-9, 2e-9, 3e-9], [0.0, 0.5, 1.0]) == (pytest.approx(1.0), 3)


def test_correlations_by_hand() -> None:
    said = "Paris is in France"
    group = [
        rollout(turn(said=said), turn("Paris", r=0.9, advantage=1.0), score=1.0),
        rollout(turn(said=said), turn("Paris x y", r=0.7, advantage=-0.2), score=1.0),
        rollout(turn(said=said), turn("Rome", r=0.1, advantage=-0.8), score=0.0),
        rollout(turn(said=said), turn("Rome", reason="nan"), score=0.0),
        rollout(turn(said=said), turn("Rome", r=0.2), score=None),
    ]
    found = correlations(notes_of(batch(group)))
    assert found["outcome"] == pytest.approx(np.corrcoef([0.9, 0.7, 0.1], [1, 1, 0])[0, 1])
    assert found["outcome_notes"] == 3
    assert found["length"] == pytest.approx(np.corrcoef([0.9, 0.7, 0.1, 0.2], [1, 3, 1, 1])[0, 1])
    assert found["completeness"] == pytest.approx(np.corrcoef([0.9, 0.7, 0.1, 0.2], [1, 1, 0, 0])[0, 1])
    # Two complete notes, two incomplete ones of equal length: only the first two can tell.
    assert (found["length_alike"], found["length_alike_notes"]) == (pytest.approx(-0.8944, abs=1e-4), 4)
    assert found["complete_punished"] == 0.5
    assert found["alike_share"] == 0.0


def test_what_is_paid_where_all_notes_are_equally_complete_is_for_wording() -> None:
    said = "Paris is in France"
    alike = [rollout(turn(said=said), turn("Paris", r=r, advantage=a)) for r, a in ((0.1, -1.0), (0.2, 1.0))]
    mixed = [
        rollout(turn(said=said), turn(note, r=r, advantage=a), question="other")
        for note, r, a in (("Paris", 0.3, 0.5), ("Rome", 0.1, -0.5))
    ]
    found = correlations(notes_of(batch(alike, mixed)))
    assert found["alike_share"] == pytest.approx(2 / 3)
    assert found["complete_punished"] == 0.0  # the complete note with a negative advantage stood beside its equals
