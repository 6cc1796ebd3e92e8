"""The true advantage of a note, from rollouts that continue from it, and how well a signal measures it.

    worth(note) = mean score of the rollouts that continue from it - mean of the same over the other notes of its state

Intervals are percentile bootstraps over states: notes of one state are compared with each other, so they are not
independent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mempo.diagnose.numbers import pearson

RESAMPLES = 1000
DIFFERS, ALIKE = 2.0, 1.0
"""In standard errors: a note made a difference when its worth is farther from 0, and none when it is no farther."""


@dataclass(frozen=True)
class Worth:
    """`state`: number of the state; `value`: mean score over all rollouts that continued from it, whatever the note.
    `error`: standard error of `worth`, from the spread of the scores; 0 where all scores of a note are equal."""

    state: int
    worth: float
    error: float
    value: float

    @property
    def differs(self) -> bool:
        return abs(self.worth) > DIFFERS * self.error

    @property
    def is_alike(self) -> bool:
        return abs(self.worth) <= ALIKE * self.error


def worths_in_state(state: int, scores: Sequence[Sequence[float]], wanted: int) -> list[Worth | None]:
    """The worth of the first `wanted` notes of a state. `scores` `[notes][rollouts]`, of all of its notes; those
    without any score are left out. None: not known, for a note without a score, or the only one with some."""
    means = {i: float(np.mean(one)) for i, one in enumerate(scores) if len(one)}
    variances = [float(np.var(one, ddof=1)) / len(one) if len(one) > 1 else 0.0 for one in scores]
    value = float(np.mean(list(means.values()))) if means else 0.0
    found: list[Worth | None] = []
    for i in range(wanted):
        others = [j for j in means if j != i]
        if i not in means or not others:
            found.append(None)
            continue
        worth = means[i] - float(np.mean([means[j] for j in others]))
        error = math.sqrt(variances[i] + sum(variances[j] for j in others) / len(others) ** 2)
        found.append(Worth(state, 0.0 if abs(worth) < 1e-12 else worth, error, value))
    return found


@dataclass(frozen=True)
class Interval:
    """A number with its 95 % interval over states; None where it is not known."""

    value: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class SignalQuality:
    """How well a signal measures what notes are worth.

    `pearson`, `spearman`: correlation with the worth. `state_value`: correlation with the value of the state, which is
    luck in what came before the note. `right_signs`, `wrong_signs`: shares among notes that made a difference (a signal
    of 0 is neither). `paid_differs`, `paid_alike`: mean |signal| of notes that made a difference, and of those that
    made none. `silent`: share of the notes to which the signal gives nothing.
    """

    name: str
    notes: int
    pearson: Interval
    spearman: Interval
    state_value: Interval
    right_signs: Interval
    wrong_signs: Interval
    paid_differs: float | None
    paid_alike: float | None
    silent: float | None


def quality(name: str, signal: Sequence[float], worths: Sequence[Worth], seed: int = 0) -> SignalQuality:
    """Of one signal, `[notes]`; a note to which it gives nothing has 0."""
    values = np.asarray(signal, dtype=np.float64)
    worth = np.array([w.worth for w in worths])
    state_value = np.array([w.value for w in worths])
    differs, alike = (np.array([getattr(w, name) for w in worths], dtype=bool) for name in ("differs", "is_alike"))
    members = _members([w.state for w in worths])

    def over_states(measure: Callable[[np.ndarray], float | None]) -> Interval:
        return _bootstrap(measure, members, seed)

    def signs(wanted: int) -> Callable[[np.ndarray], float | None]:
        agree = np.sign(values) * np.sign(worth) == wanted
        return lambda rows: _mean(agree[rows[differs[rows]]].astype(float))

    return SignalQuality(
        name=name,
        notes=len(values),
        pearson=over_states(lambda rows: pearson(values[rows], worth[rows])),
        spearman=over_states(lambda rows: pearson(ranks(values[rows]), ranks(worth[rows]))),
        state_value=over_states(lambda rows: pearson(values[rows], state_value[rows])),
        right_signs=over_states(signs(1)),
        wrong_signs=over_states(signs(-1)),
        paid_differs=_mean(np.abs(values[differs])),
        paid_alike=_mean(np.abs(values[alike])),
        silent=_mean((values == 0).astype(float)),
    )


def ceiling(worths: Sequence[Worth]) -> float | None:
    """About the largest correlation that a perfect signal could have with worths that are measured with error: the root
    of the part of their variance that is no error. None where they do not vary."""
    variance = float(np.var([w.worth for w in worths])) if worths else 0.0
    if variance == 0:
        return None
    return math.sqrt(max(0.0, 1 - float(np.mean([w.error**2 for w in worths])) / variance))


def ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 0, equal values sharing the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts + 1) / 2)[inverse]


def _members(states: Sequence[int]) -> list[np.ndarray]:
    found: dict[int, list[int]] = {}
    for i, state in enumerate(states):
        found.setdefault(state, []).append(i)
    return [np.array(rows, dtype=np.intp) for rows in found.values()]


def _bootstrap(measure: Callable[[np.ndarray], float | None], members: Sequence[np.ndarray], seed: int) -> Interval:
    if not members:
        return Interval(None)
    value = measure(np.concatenate(members))
    if value is None or len(members) < 2:
        return Interval(value)
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, len(members), size=(RESAMPLES, len(members)))
    found = [measure(np.concatenate([members[i] for i in row])) for row in drawn]
    known = [one for one in found if one is not None]
    if not known:
        return Interval(value)
    low, high = np.quantile(known, [0.025, 0.975])
    return Interval(value, float(low), float(high))


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None
