"""Many rollouts of one agent as metrics: by number of objectives, question by question first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mempo.evaluate.stats import mean_of, pass_at_k, question_means
from mempo.rewards.rollout_metrics import aggregate, counts, mean, unscored
from mempo.rollout.trajectory import StopReason

Line = Mapping[str, Any]
Value = Callable[[Line], float | None]


def _calls(line: Line) -> float | None:
    actions = line.get("actions")
    return None if actions is None else sum(n for kind, n in actions.items() if kind != "answer")


KEYS = {"turns": "num_turns"}
"""Metrics that are a key of the line under another name."""

VALUES: dict[str, Value] = {
    "searches": lambda line: None if line.get("actions") is None else line["actions"].get("search", 0),
    "tool_calls": _calls,
    "no_search": lambda line: None if line.get("actions") is None else float(not line["actions"].get("search")),
    "note_tokens": lambda line: sum(found) / len(found) if (found := line.get("note_tokens")) else None,
    "p_mem": lambda line: mean(note["p_mem_raw"] for note in line["notes"]) if line.get("notes") else None,
}
"""What a rollout's line says of a metric, where it is not just a key of the line; None: not known."""

AVERAGED = (
    *("score", "em", "f1", "sub_em", "mean_em", "mean_f1"),
    *("format_ok", "turns", *VALUES),
    *("generated_tokens", "peak_context_tokens", "total_tokens", "processed_tokens", "read_tokens", "written_tokens"),
    *("dependency", "mem1_peak_tokens", "seconds"),
)


def value_of(name: str) -> Value:
    """The value of a metric in a line; those not in `VALUES` are keys of it."""
    key = KEYS.get(name, name)
    return VALUES.get(name, lambda line: line.get(key))


def means_of(lines: Iterable[Line], names: Sequence[str]) -> dict[str, dict[str, float]]:
    """`{metric: {question id: mean over its rollouts that count}}`, without questions of which nothing is known."""
    sound = [line for line in lines if counts(line)]
    places: dict[str, int] = {}
    index = np.array([places.setdefault(line["question_id"], len(places)) for line in sound], dtype=np.intp)
    ids = np.array(list(places), dtype=object)
    found = {}
    for name in names:
        values = np.array(list(map(value_of(name), sound)), dtype=np.float64)  # None becomes NaN
        known = ~np.isnan(values)
        samples = np.bincount(index[known], minlength=len(ids))
        there = samples > 0
        means = np.bincount(index[known], values[known], minlength=len(ids))[there] / samples[there]
        found[name] = dict(zip(ids[there].tolist(), means.tolist(), strict=True))
    return found


def by_objectives(lines: Iterable[Line]) -> dict[int, list[Line]]:
    """Lines by number of objectives, ascending."""
    found: dict[int, list[Line]] = {}
    for line in lines:
        found.setdefault(line["objectives"], []).append(line)
    return dict(sorted(found.items()))


class PassRate(NamedTuple):
    """Pass@k, and of how many questions it is the mean."""

    value: float | None
    questions: int


def pass_rate(lines: Iterable[Line], k: int, name: str = "em") -> PassRate:
    """Pass@k: the mean over questions with at least k samples that count and of known value."""
    rates = {question: pass_at_k(values, k) for question, values in samples_of(lines, name).items()}
    known = {question: rate for question, rate in rates.items() if rate is not None}
    return PassRate(mean_of(known), len(known))


def samples_of(lines: Iterable[Line], name: str = "em") -> dict[str, list[float]]:
    """`{question id: known values of its samples that count}`, of every question, those without any too."""
    value = value_of(name)
    found: dict[str, list[float]] = {}
    for line in lines:
        known = found.setdefault(line["question_id"], [])
        if counts(line) and (one := value(line)) is not None:
            known.append(one)
    return found


def most_samples(lines: Iterable[Line]) -> int:
    """The most samples that any question was given, failed ones included: the k that was asked for, where nothing else
    says it."""
    return max(Counter(line["question_id"] for line in lines).values(), default=0)


def scored_questions(lines: Iterable[Line], means: Mapping[str, Mapping[str, float]]) -> int:
    """The n of a table: questions whose exact match is known; where no gold answer is, those with a rollout that
    counts."""
    return len(means.get("em", ())) or len({line["question_id"] for line in lines if counts(line)})


def objective_means(lines: Iterable[Line], name: str) -> list[float | None]:
    """Means of `objective_em` and its like by place in the question `[objectives]`, question by question first."""
    sound = [line for line in lines if counts(line) and line.get(name)]
    places = max((len(line[name]) for line in sound), default=0)
    return [
        mean_of(question_means((line["question_id"], line[name][i]) for line in sound if i < len(line[name])))
        for i in range(places)
    ]


def summarise(lines: Sequence[Line], more: Sequence[str] = (), samples: int | None = None) -> dict[str, Any]:
    """Metrics of rollouts of one agent and one number of objectives. `more`: further keys of the lines to average;
    `samples`: how many samples a question were asked for, where that is known.

    `questions` and `rollouts` are counts, `errors` and `unscored` are rollouts that do not count: they are in no mean.
    `scored_questions` is the number of questions that the means rest on. With several samples a question, `pass@k` is
    the share of questions of which one of k samples is right, `pass@k_questions` the number of questions with k
    samples.
    """
    out: dict[str, Any] = {"questions": float(len({line["question_id"] for line in lines}))}
    if all("num_turns" in line for line in lines):
        out |= aggregate(lines, [StopReason(line["stop"]) for line in lines])
    else:  # predictions of another program: answers are all there is
        errors = sum(bool(line.get("is_error")) for line in lines)
        left_out = {"errors": float(errors), "unscored": float(sum(map(unscored, lines)))}
        out |= {"rollouts": float(len(lines)), **left_out}
    means = means_of(lines, (*AVERAGED, *more))
    out["scored_questions"] = float(scored_questions(lines, means))
    out |= {name: mean_of(values) for name, values in means.items()}
    for name in ("objective_em", "objective_f1", "objective_sub_em"):
        if found := objective_means(lines, name):
            out[name] = found
    k = samples or most_samples(lines)
    if k > 1:
        rate = pass_rate(lines, k)
        out |= {f"pass@{k}": rate.value, f"pass@{k}_questions": float(rate.questions)}
    return out
