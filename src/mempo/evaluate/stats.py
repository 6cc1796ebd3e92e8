"""Means, intervals and comparisons over questions, and metrics of several samples a question.

The question is the unit: its samples are averaged first, so that a question with more of them (or with fewer, because
some failed) counts as much as any other. What is not known (None) is left out and never 0.

No interval collapses to a point: three questions of three right leave room for a rate of 44 %. Shares and differences
of shares therefore use intervals made for few questions and for rates near 0 and 1; a resampling of three equal values
knows no other value.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

RESAMPLES = 2000
FLIPS = 10_000
_EXACT_QUESTIONS = 14  # up to 2^14 = 16 384 sign patterns are enumerated
_FEW_VALUES = 200
_MANY_QUESTIONS = 2000
_CHUNK_ITEMS = 4_000_000


@dataclass(frozen=True)
class Estimate:
    """A mean over `questions` questions and its interval; all None when no question has a value, the interval None
    where the values tell nothing of their spread."""

    mean: float | None
    low: float | None
    high: float | None
    questions: int


@dataclass(frozen=True)
class Comparison:
    """`difference`: mean of second minus first over the questions that both have; `p_value`: of a two-sided sign-flip
    test, that both do equally well."""

    difference: float | None
    low: float | None
    high: float | None
    p_value: float | None
    questions: int
    better: int = 0
    worse: int = 0


def question_means(pairs: Iterable[tuple[str, float | None]]) -> dict[str, float]:
    """`(question id, value)` of every sample to the mean of each question; questions without a value are left out."""
    sums: dict[str, tuple[float, int]] = {}
    for question, value in pairs:
        if value is not None:
            total, count = sums.get(question, (0.0, 0))
            sums[question] = (total + value, count + 1)
    return {question: total / count for question, (total, count) in sums.items()}


def mean_of(means: Mapping[str, float]) -> float | None:
    return math.fsum(means.values()) / len(means) if means else None


def share(means: Mapping[str, float], top: float = 1.0, seed: int = 0, level: float = 0.95) -> Estimate:
    """Mean of a metric between 0 and `top`, such as a rate or F1.

    Where every question is wholly right or wholly wrong: Wilson's interval. Else (F1, several samples a question) the
    normal interval after adding z²/2 questions of value 0 and as many of value `top`, which is what Agresti and Coull
    do for rates. A metric that leaves its range (a score of the user's own) gets a bootstrap.
    """
    values = np.array(list(means.values()), dtype=np.float64) / top
    if not len(values):
        return Estimate(None, None, None, 0)
    if values.min() < 0 or values.max() > 1:
        return bootstrap(means, seed, level)
    n, z = len(values), NormalDist().inv_cdf((1 + level) / 2)
    if np.isin(values, (0.0, 1.0)).all():
        low, high = wilson(float(values.mean()), n, z)
    else:
        low, high = _normal_with(values, (0.0, 1.0), z * z / 2, z)
    return Estimate(mean_of(means), top * max(low, 0.0), top * min(high, 1.0), n)


def wilson(rate: float, n: int, z: float) -> tuple[float, float]:
    """Wilson's interval of a rate seen in `n` tries."""
    centre, spread = rate + z * z / (2 * n), z * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    return (centre - spread) / (1 + z * z / n), (centre + spread) / (1 + z * z / n)


def bootstrap(means: Mapping[str, float], seed: int = 0, level: float = 0.95, resamples: int = RESAMPLES) -> Estimate:
    """Mean of a metric without bounds, such as tokens, with a percentile interval: questions are drawn with
    replacement, `resamples` times. Values that are all alike tell nothing of their spread."""
    values = np.array(list(means.values()), dtype=np.float64)
    if len(values) < 2 or values.min() == values.max():
        return Estimate(mean_of(means), None, None, len(values))
    low, high = _interval(values, seed, level, resamples)
    return Estimate(mean_of(means), low, high, len(values))


def compare_paired(
    first: Mapping[str, float], second: Mapping[str, float], seed: int = 0, level: float = 0.95
) -> Comparison:
    """Two agents' shares on the questions that both have, matched by id. The interval of the difference is Bonett and
    Price's, made for rates and used for every share: as if two more questions had been asked, of which each agent won
    one. So it never collapses, not even where the two agree on everything. `seed`: of the sign-flip test."""
    common = [question for question in first if question in second]
    differences = np.array([second[question] - first[question] for question in common], dtype=np.float64)
    if not common:
        return Comparison(None, None, None, None, 0)
    mean = math.fsum(differences) / len(common)
    better, worse = int((differences > 0).sum()), int((differences < 0).sum())
    if len(common) < 2:
        return Comparison(mean, None, None, None, 1, better, worse)
    low, high = _normal_with(differences, (-1.0, 1.0), 1.0, NormalDist().inv_cdf((1 + level) / 2))
    p_value = sign_flip_test(differences, seed)
    return Comparison(mean, max(low, -1.0), min(high, 1.0), p_value, len(common), better, worse)


def _normal_with(values: np.ndarray, ends: tuple[float, float], weight: float, z: float) -> tuple[float, float]:
    """The normal interval of the mean after adding `weight` values at either end of the range."""
    n = len(values) + 2 * weight
    mean = (values.sum() + weight * sum(ends)) / n
    variance = (np.square(values).sum() + weight * sum(end * end for end in ends)) / n - mean * mean
    half = z * math.sqrt(variance / n)
    return float(mean - half), float(mean + half)


def sign_flip_test(differences: np.ndarray | Sequence[float], seed: int = 0, flips: int = FLIPS) -> float:
    """How often a mean at least as far from 0 comes about when the sign of each difference is a coin toss.

    Differences of 0 change nothing and are left out. Few others: every pattern is looked at; many: `flips` random
    ones, the observed pattern counted among them.
    """
    values = np.asarray(differences, dtype=np.float64)
    values = values[values != 0]
    if not len(values):
        return 1.0
    observed = abs(values.sum())
    slack = 1e-12 * np.abs(values).sum()  # sums of the same numbers in another order
    if len(values) <= _EXACT_QUESTIONS:
        patterns = np.arange(2 ** len(values))[:, None] >> np.arange(len(values)) & 1
        return float((np.abs((1 - 2 * patterns) @ values) >= observed - slack).mean())
    # m equal sizes with random signs sum to (2·Binomial(m, 1/2) − m) times the size.
    sizes, counts = np.unique(np.abs(values), return_counts=True)
    hits, rng = 1, np.random.default_rng(seed)
    for rows in _chunks(flips, len(sizes)):
        signs = 2 * rng.binomial(counts, 0.5, size=(rows, len(sizes))) - counts
        hits += int((np.abs(signs @ sizes) >= observed - slack).sum())
    return hits / (flips + 1)


def pass_at_k(samples: Sequence[float | None], k: int) -> float | None:
    """Pass@k of one question: the chance that at least one of k samples drawn from those made is right (value 1).

    With c right ones of n: 1 − C(n−c, k) / C(n, k), which is unbiased for any n >= k. None with fewer than k samples
    of known value.
    """
    if k < 1:
        raise ValueError(f"k={k}: at least one sample is drawn")
    known = [value for value in samples if value is not None]
    if len(known) < k:
        return None
    right = sum(value >= 1 for value in known)
    return 1 - math.comb(len(known) - right, k) / math.comb(len(known), k)


def _interval(values: np.ndarray, seed: int, level: float, resamples: int) -> tuple[float, float]:
    """Percentile bootstrap of the mean. With many questions of many different values the normal interval, which it then
    equals to within its own noise."""
    found, counts = np.unique(values, return_counts=True)
    rng, n, tail = np.random.default_rng(seed), len(values), (1 - level) / 2
    if len(found) <= _FEW_VALUES and len(found) < n / 4:
        # Drawing n questions is drawing how often each value comes.
        drawn = rng.multinomial(n, counts / n, size=resamples) @ found / n
    elif n > _MANY_QUESTIONS:
        half = NormalDist().inv_cdf(1 - tail) * values.std(ddof=1) / math.sqrt(n)
        return float(values.mean() - half), float(values.mean() + half)
    else:
        rows_at_once = _chunks(resamples, n)
        drawn = np.concatenate([values[rng.integers(0, n, size=(rows, n))].mean(axis=1) for rows in rows_at_once])
    low, high = np.quantile(drawn, [tail, 1 - tail])
    return float(low), float(high)


def _chunks(resamples: int, width: int) -> list[int]:
    """Rows at a time, so that 100 000 questions do not need gigabytes."""
    rows = max(1, _CHUNK_ITEMS // width)
    return [min(rows, resamples - first) for first in range(0, resamples, rows)]


_STUDENT_95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""The 97.5 % quantile of Student's t with 1, 2, … 30 degrees of freedom."""


def student_interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    """The 95 % interval of a mean by Student's t, for a handful of values (runs, seeds), where a bootstrap is far too
    narrow; `(None, None)` for fewer than two."""
    if len(values) < 2:
        return None, None
    array = np.asarray(values, dtype=np.float64)
    t = _STUDENT_95[len(values) - 2] if len(values) - 2 < len(_STUDENT_95) else NormalDist().inv_cdf(0.975)
    half = t * float(array.std(ddof=1)) / math.sqrt(len(values))
    return float(array.mean()) - half, float(array.mean()) + half
