"""Statistics over questions, against numbers worked out by hand and plain loops."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import numpy as np
import pytest

from mempo.evaluate.stats import (
    bootstrap,
    compare_paired,
    mean_of,
    pass_at_k,
    question_means,
    share,
    sign_flip_test,
)


def test_a_question_counts_once_however_many_samples_it_has() -> None:
    means = question_means([("a", 1.0), ("a", 1.0), ("a", 0.0), ("a", 0.0), ("b", 1.0), ("c", None)])
    assert means == {"a": 0.5, "b": 1.0}
    assert mean_of(means) == 0.75  # over rollouts it would be 0.6
    assert mean_of({}) is None


def test_pass_at_k() -> None:
    samples = [1.0, 0.0, 0.0, 1.0, None]
    assert pass_at_k(samples, 1) == 0.5
    assert pass_at_k(samples, 2) == pytest.approx(1 - 1 / 6)  # of 6 pairs one has no right sample
    assert pass_at_k(samples, 4) == 1.0
    assert pass_at_k(samples, 5) is None
    assert pass_at_k([0.0, 0.5], 1) == 0.0  # half right is not right
    with pytest.raises(ValueError, match="at least one"):
        pass_at_k(samples, 0)


def test_pass_at_k_is_the_share_of_all_choices() -> None:
    samples = [1.0, 0.0, 1.0, 0.0, 0.0, 0.0]
    for k in range(1, 7):
        choices = list(itertools.combinations(samples, k))
        assert pass_at_k(samples, k) == pytest.approx(sum(max(c) for c in choices) / len(choices))


def plain_bootstrap(values: list[float], resamples: int = 4000) -> tuple[float, float]:
    rng = random.Random(5)
    means = sorted(sum(rng.choices(values, k=len(values))) / len(values) for _ in range(resamples))
    return means[int(0.025 * resamples)], means[int(0.975 * resamples)]


@pytest.mark.parametrize(
    "values",
    [
        [9.0] * 30 + [1.0] * 70,  # few values, drawn by their counts
        [float(i * i % 97) + i / 1000 for i in range(80)],  # all different, drawn one by one
        [float(i * i % 997) + i / 10_000 for i in range(2500)],  # many and different: the normal interval
    ],
    ids=["few values", "different", "many"],
)
def test_the_interval_is_that_of_a_plain_bootstrap(values: list[float]) -> None:
    found = bootstrap({str(i): v for i, v in enumerate(values)})
    low, high = plain_bootstrap(values, 4000 if len(values) < 1000 else 400)
    width = high - low
    assert found.mean == pytest.approx(sum(values) / len(values))
    assert found.questions == len(values)
    assert found.low == pytest.approx(low, abs=0.15 * width)
    assert found.high == pytest.approx(high, abs=0.15 * width)


def test_the_bootstrap_is_seeded_and_absent_where_it_says_nothing() -> None:
    means = {str(i): float(i % 2) for i in range(20)}
    assert bootstrap(means, 1) == bootstrap(means, 1)
    one = bootstrap({"a": 0.5})
    assert (one.mean, one.low, one.high, one.questions) == (0.5, None, None, 1)
    assert bootstrap({}).mean is None
    alike = bootstrap(numbered([412.0] * 3))
    assert (alike.mean, alike.low, alike.high) == (412.0, None, None)


def numbered(values: Sequence[float]) -> dict[str, float]:
    return {str(i): float(value) for i, value in enumerate(values)}


@pytest.mark.parametrize(
    ("right", "of", "low", "high"),
    # Wilson's interval, from published tables and by hand.
    [
        *((3, 3, 0.4385, 1.0), (0, 3, 0.0, 0.5615), (1, 1, 0.2065, 1.0), (0, 1, 0.0, 0.7935), (6, 8, 0.4093, 0.9285)),
        *((81, 263, 0.2553, 0.3662), (0, 20, 0.0, 0.1611), (10, 10, 0.7225, 1.0), (100, 100, 0.9630, 1.0)),
    ],
)
def test_rates_have_wilsons_interval(right: int, of: int, low: float, high: float) -> None:
    found = share(numbered([1.0] * right + [0.0] * (of - right)))
    assert (found.mean, found.questions) == (right / of, of)
    assert (found.low, found.high) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))


@pytest.mark.parametrize(
    "values",
    [[1, 1, 0.99], [2 / 3, 1, 1], [0.5] * 10, [1.0] * 29 + [0.9], [0.0, 0.01], [0.3], [1 / 3] * 1000],
    ids=str,
)
def test_shares_that_are_no_rates_do_not_collapse_either(values: list[float]) -> None:
    found = share(numbered(values))
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.mean < found.high or found.high == 1  # type: ignore[operator]
    assert found.low >= 0
    assert found.high <= 1
    assert found.high - found.low > 3 / (len(values) + 4), "n questions say nothing of what happens once in n"


def test_a_share_by_hand() -> None:
    # Two questions at 0.5; z = 1.96, so 1.92 zeros and as many ones are added: n = 5.84, mean 0.5,
    # variance (2 · 0.25 + 1.92) / 5.84 − 0.25 = 0.1644, half 1.96 · √(0.1644 / 5.84) = 0.3288.
    found = share({"a": 0.5, "b": 0.5})
    assert (found.low, found.high) == (pytest.approx(0.1712, abs=1e-4), pytest.approx(0.8288, abs=1e-4))


def test_many_questions_have_the_usual_interval() -> None:
    rng = np.random.default_rng(0)
    values = rng.beta(2, 3, size=3000)
    found, half = share(numbered(values.tolist())), 1.96 * values.std() / np.sqrt(3000)
    assert found.low == pytest.approx(values.mean() - half, abs=0.0005)
    assert found.high == pytest.approx(values.mean() + half, abs=0.0005)


def test_what_has_another_range() -> None:
    summed = share(numbered([2, 2, 2]), top=2)  # MEM1 sums over two objectives
    assert (summed.low, summed.high) == (pytest.approx(2 * 0.4385, abs=1e-4), 2.0)
    own = numbered([-3.0, 5.0, 9.0, 1.0])  # a score of the user's own
    assert share(own) == bootstrap(own)
    nothing = share({})
    assert (nothing.mean, nothing.low, nothing.high, nothing.questions) == (None, None, None, 0)


@pytest.mark.parametrize("n", [2, 3, 20, 100])
def test_agents_that_never_differ_may_differ_elsewhere(n: int) -> None:
    alike = compare_paired(numbered([1.0] * n), numbered([1.0] * n))
    # Bonett and Price: each agent won one of n + 2.
    half = 1.959964 * np.sqrt(2 / (n + 2)) / np.sqrt(n + 2)
    assert (alike.difference, alike.p_value) == (0.0, 1.0)
    assert (alike.low, alike.high) == (pytest.approx(max(-half, -1)), pytest.approx(min(half, 1)))


def test_a_paired_interval_by_hand() -> None:
    # 10 questions, second better on 4 and worse on 1: 5/12 and 2/12 after adding one to each, so
    # 3/12 ± 1.96 · √((7/12 − 1/16) / 12) = 0.25 ± 0.4084.
    differences = [1.0] * 4 + [-1.0] + [0.0] * 5
    found = compare_paired(numbered([0.0] * 10), numbered(differences))
    assert (found.low, found.high) == (pytest.approx(-0.1584, abs=1e-4), pytest.approx(0.6584, abs=1e-4))


def test_two_agents_are_compared_on_what_both_have() -> None:
    first = {"a": 0.0, "b": 0.0, "c": 1.0, "only first": 1.0}
    second = {"c": 1.0, "b": 1.0, "a": 1.0, "only second": 0.0}
    found = compare_paired(first, second)
    assert found.difference == pytest.approx(2 / 3)
    assert (found.questions, found.better, found.worse) == (3, 2, 0)
    assert found.p_value == 0.5  # two differences of one sign: 2 of 4 patterns
    assert compare_paired({"a": 1.0}, {"b": 1.0}).difference is None
    assert compare_paired({"a": 1.0}, {"a": 0.0}).p_value is None


def test_the_sign_flip_test_looks_at_every_pattern() -> None:
    differences = [1.0, 1.0, -0.5, 0.0, 0.25, -0.25]
    observed = abs(sum(differences))
    patterns = list(itertools.product((-1, 1), repeat=len(differences)))
    hits = sum(abs(sum(s * d for s, d in zip(p, differences, strict=True))) >= observed - 1e-12 for p in patterns)
    assert sign_flip_test(differences) == pytest.approx(hits / len(patterns))
    assert sign_flip_test([0.0, 0.0]) == 1.0


def test_many_differences_are_flipped_at_random() -> None:
    rng = np.random.default_rng(0)
    mixed = rng.choice([-1.0, 0.5, 1.0], size=60)
    signs = rng.choice([-1, 1], size=(20_000, 60))
    plain = (np.abs(signs @ mixed) >= abs(mixed.sum()) - 1e-9).mean()
    assert sign_flip_test(mixed) == pytest.approx(plain, abs=0.02)
    assert sign_flip_test([1.0] * 40) < 0.001
    assert sign_flip_test(mixed, seed=3) == sign_flip_test(mixed, seed=3)
