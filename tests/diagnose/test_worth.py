"""What notes are worth and how signals are set against it, with numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mempo.diagnose.numbers import pearson
from mempo.diagnose.worth import Worth, ceiling, quality, ranks, worths_in_state


def test_a_note_is_worth_its_mean_less_that_of_the_others_of_its_state() -> None:
    # means .75, .25, 0; variances of the scores .25, .25, 0 (n - 1), over four rollouts each
    found = worths_in_state(3, [[1, 1, 1, 0], [0, 0, 0, 1], [0, 0, 0, 0]], wanted=2)
    first, second = found
    assert first is not None
    assert second is not None
    assert first.worth == pytest.approx(0.75 - 0.125)
    assert second.worth == pytest.approx(0.25 - 0.375)
    assert first.error == pytest.approx(math.sqrt(0.25 / 4 + (0.25 / 4 + 0) / 4))
    assert first.value == second.value == pytest.approx(1 / 3)
    assert first.state == 3
    assert (first.differs, first.is_alike) == (True, False)  # .625 is more than two errors of .28
    assert (second.differs, second.is_alike) == (False, True)


def test_what_cannot_be_known_is_none() -> None:
    assert worths_in_state(0, [[1.0]], wanted=1) == [None]  # nothing beside it
    missing, known = worths_in_state(0, [[], [1.0, 1.0], [0.0, 0.0]], wanted=2)
    assert missing is None
    assert known is not None
    assert (known.worth, known.error, known.differs) == (1.0, 0.0, True)
    alike, _ = worths_in_state(0, [[1.0, 1.0], [1.0, 1.0]], wanted=2)
    assert alike is not None
    assert (alike.worth, alike.differs, alike.is_alike) == (0.0, False, True)


def worths(*pairs: tuple[int, float], error: float = 0.01, value: float = 0.5) -> list[Worth]:
    return [Worth(state, worth, error, value) for state, worth in pairs]


def test_correlations_and_signs() -> None:
    some = worths((0, 0.5), (0, -0.5), (1, 0.25), (1, -0.25), (2, 0.0), (2, 0.005))
    good = quality("same", [5, -5, 2.5, -2.5, 0, 0.05], some)
    assert good.pearson.value == pytest.approx(1)
    assert good.spearman.value == pytest.approx(1)
    assert (good.right_signs.value, good.wrong_signs.value) == (1.0, 0.0)  # of the four that made a difference
    assert good.paid_differs == pytest.approx(3.75)
    assert good.paid_alike == pytest.approx(0.025)
    assert good.silent == pytest.approx(1 / 6)
    mixed = quality("mixed", [1, 1, 0, -1, 4, -4], some)
    assert (mixed.right_signs.value, mixed.wrong_signs.value) == (0.5, 0.25)  # one of them is paid nothing
    expected = np.corrcoef([1, 1, 0, -1, 4, -4], [w.worth for w in some])[0, 1]
    assert mixed.pearson.value == pytest.approx(expected)
    assert mixed.pearson.low is not None
    assert mixed.pearson.high is not None
    assert mixed.pearson.low < expected < mixed.pearson.high
    assert quality("none", [0] * 6, some).pearson.value is None


def test_luck_of_the_state_shows() -> None:
    some = [Worth(i, 0.0, 0.1, value) for i, value in enumerate((0.1, 0.5, 0.9))]
    found = quality("luck", [1, 2, 3], some)
    assert found.state_value.value == pytest.approx(1)
    assert found.pearson.value is None  # no note made any difference


def test_the_interval_is_over_states_and_not_over_notes() -> None:
    """Ten equal notes in each of three states are three tries, not thirty."""
    few = [(s, w) for s, w in enumerate((0.5, -0.5, 0.1))]
    signal = [0.6, -0.2, -0.3]
    once = quality("x", signal, worths(*few), seed=1)
    often = quality("x", [v for v in signal for _ in range(10)], worths(*(p for p in few for _ in range(10))), seed=1)
    assert often.pearson.value == pytest.approx(once.pearson.value)
    assert often.pearson.low == pytest.approx(once.pearson.low)
    assert often.pearson.high == pytest.approx(once.pearson.high)


def test_ranks_share_the_mean_of_equal_values() -> None:
    assert ranks(np.array([3.0, 1.0, 3.0, 2.0])).tolist() == [2.5, 0.0, 2.5, 1.0]
    assert pearson(np.array([1.0]), np.array([1.0])) is None


def test_the_ceiling_of_a_correlation() -> None:
    assert ceiling(worths((0, 0.0), (1, 0.0))) is None
    assert ceiling(worths((0, 0.5), (1, -0.5), error=0.0)) == 1
    # variance of the worths .25, of which .09 is error
    assert ceiling(worths((0, 0.5), (1, -0.5), error=0.3)) == pytest.approx(math.sqrt(1 - 0.09 / 0.25))
    assert ceiling(worths((0, 0.5), (1, -0.5), error=2.0)) == 0
