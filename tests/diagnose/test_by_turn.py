"""The drift by turn: what pooling makes of rewards that differ by turn alone."""

from __future__ import annotations

import numpy as np
import pytest

from mempo.diagnose.by_turn import by_turn, drift
from mempo.diagnose.records import Batch
from tests.diagnose.build import batch, rollout, turn

MEANS = (-0.10, -0.22, -0.33)


def published() -> Batch:
    """16 rollouts, turns 2 to 4, the given means by turn, and a pool of 48 with a standard deviation of 0.13."""
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(16, 3))
    noise -= noise.mean(axis=0)  # the means by turn are exact
    means = np.array(MEANS)
    between = 16 * float(((means - means.mean()) ** 2).sum())
    within = 47 * 0.13**2 - between
    values = means + noise * np.sqrt(within / float((noise**2).sum()))
    assert values.std(ddof=1) == pytest.approx(0.13)
    return batch([rollout(turn(), *(turn("n", r=float(r), advantage=0.0) for r in row), score=1.0) for row in values])


def test_pooling_a_question_praises_early_turns_and_pooling_a_turn_does_not() -> None:
    turns = by_turn(published())
    assert [t.turn for t in turns] == [2, 3, 4]
    assert [t.r for t in turns] == pytest.approx(MEANS)
    assert [t.credit_question for t in turns] == pytest.approx([0.90, -0.03, -0.87], abs=0.005)
    assert [t.credit_turn for t in turns] == pytest.approx([0, 0, 0], abs=1e-9)
    assert drift(turns, lambda t: t.credit_question) == pytest.approx(1.77, abs=0.01)
    assert drift(turns, lambda t: t.credit_turn) == pytest.approx(0, abs=1e-9)


def test_each_question_is_standardised_by_itself() -> None:
    easy = [rollout(turn(), turn("n", r=r), question="easy") for r in (0.8, 0.9)]
    hard = [rollout(turn(), turn("n", r=r), question="hard") for r in (0.1, 0.2)]
    (only,) = by_turn(batch(easy, hard), min_pool=2)
    assert only.credit_turn == pytest.approx(0)
    assert only.r == pytest.approx(0.5)
    assert only.r_std == pytest.approx(np.std([0.8, 0.9, 0.1, 0.2], ddof=1))


def test_counts_and_what_is_not_known() -> None:
    made = batch(
        [
            rollout(turn(), turn("a b", r=0.5, p_mem=0.5, p_mem_raw=0.4, advantage=2.0), turn()),
            rollout(turn(), turn("a", reason="nan")),
            rollout(turn("first")),
        ]
    )
    second, third = by_turn(made)
    assert (second.rollouts, second.notes, second.scored, second.credited) == (2, 2, 1, 1)
    assert (second.p_mem, second.p_mem_raw, second.p_base, second.credit) == (0.5, 0.4, None, 2.0)
    assert second.note_tokens == 1.5
    assert second.r_std is None
    assert (third.rollouts, third.notes) == (1, 0)
    assert third.r is None
    assert third.credit_turn is None
    assert third.note_tokens is None


def test_a_turn_with_few_notes_makes_no_drift() -> None:
    rollouts = [rollout(turn(), turn("n", r=0.1 * i, advantage=1.0)) for i in range(8)]
    rollouts[0] = rollout(turn(), turn("n", r=0.0, advantage=1.0), turn("n", r=5.0, advantage=9.0))
    assert drift(by_turn(batch(rollouts)), lambda t: t.credit) is None


def test_nothing_is_nothing() -> None:
    assert by_turn(batch()) == []
    assert drift([], lambda t: t.r) is None
