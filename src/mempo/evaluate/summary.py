"""Many rollouts of one agent as measures: by number of objectives, question by question first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from mempo.evaluate.stats import mean_of, pass_at_k, question_means
from mempo.measures import aggregate, counts, mean, unscored
from mempo.trajectory import StopReason

Line = Mapping[str, Any]
Value = Callable[[Line], float | None]


def _calls(line: Line) -> float | None:
    actions = line.get("actions")
    return None if actions is None else sum(n for kind, n in actions.items() if kind != "answer")


KEYS = {"turns": "num_turns"}
"""Measures that are a key of the line under another name."""

VALUES: dict[str, Value] = {
    "searches": lambda line: None if line.get("actions") is None else line["actions"].get("search", 0),
    "tool_calls": _calls,
    "no_search": lambda line: None if line.get("actions") is None else float(not line["actions"].get("search")),
    "note_tokens": lambda line: sum(found) / len(found) if (found := line.get("note_tokens")) else None,
    "p_mem": lambda line: mean(note["p_mem_raw"] for note in line["notes"]) if line.get("notes") else None,
}
"""What a rollout's line says of a measure, where it is not just a key of the line; None: not known."""

AVERAGED = (
    *("score", "em", "f1", "sub_em", "mean_em", "mean_f1"),
    *("format_ok", "turns", *VALUES),
    *("generated_tokens", "peak_context_tokens", "total_tokens", "processed_tokens", "read_tokens", "written_tokens"),
    *("dependency", "mem1_peak_tokens", "seconds"),
)


def value_of(name: str) -> Value:
    """The value of a measure in a line; those not in `VALUES` are keys of it."""
    return VALUES.get(name, lambda line: line.get(KEYS.get(name, name)))


def means_of(lines: Iterable[Line], names: Sequence[str]) -> dict[str, dict[str, float]]:
    """`{measure: {question id: mean over its rollouts that count}}`, without questions of which nothing is known."""
    sound = [line for line in lines if counts(line)]
    places: dict[str, int] = {}
    index = np.array([places.setdefault(line["question_id"], len(places)) for line in sound], dtype=np.intp)
    ids = np.array(list(places), dtype=object)
    found = {}
    for name, told in _columns(sound, names):
        values = np.array(told, dtype=np.float64)  # None becomes NaN
        known = ~np.isnan(values)
        samples = np.bincount(index[known], minlength=len(ids))
        there = samples > 0
        means = np.bincount(index[known], values[known], minlength=len(ids))[there] / samples[there]
        found[name] = dict(zip(ids[there].tolist(), means.tolist(), strict=True))
    return found


def _columns(lines: Sequence[Line], names: Sequence[str]) -> Iterator[tuple[str, Sequence[float | None]]]:
    """Every measure with its values `[lines]`. Keys that all lines have are taken together, which is quicker."""
    keys = {name: KEYS.get(name, name) for name in names if name not in VALUES}
    plain = [name for name in keys if lines and keys[name] in lines[0]]
    try:
        if len(plain) > 1:
            rows = map(itemgetter(*(keys[name] for name in plain)), lines)
            yield from zip(plain, zip(*rows, strict=True), strict=True)
        else:
            plain = []
    except KeyError:
        plain = []
    for name in names:
        if name in VALUES:
            yield name, list(map(VALUES[name], lines))
        elif name not in plain:
            key = keys[name]
            yield name, [line.get(key) for line in lines]


def by_objectives(lines: Iterable[Line]) -> dict[int, list[Line]]:
    """Lines by number of objectives, ascending."""
    found: dict[int, list[Line]] = {}
    for line in lines:
        found.setdefault(line["objectives"], []).append(line)
    return dict(sorted(found.items()))


def pass_rate(lines: Iterable[Line], k: int, name: str = "em") -> float | None:
    """Pass@k: the mean over questions with at least k samples that count."""
    value = value_of(name)
    samples: dict[str, list[float | None]] = {}
    for line in lines:
        if counts(line):
            samples.setdefault(line["question_id"], []).append(value(line))
    # Questions with as many samples and right ones are alike, and there are few kinds of them.
    kinds = Counter(tuple(sorted(float(v >= 1) for v in values if v is not None)) for values in samples.values())
    rates = {kind: pass_at_k(kind, k) for kind in kinds}
    known = {kind: count for kind, count in kinds.items() if rates[kind] is not None}
    total = sum(known.values())
    return sum(count * (rates[kind] or 0.0) for kind, count in known.items()) / total if total else None


def samples_per_question(lines: Iterable[Line]) -> int:
    """The most samples that count that any question has."""
    samples = Counter(line["question_id"] for line in lines if counts(line))
    return max(samples.values(), default=0)


def objective_means(lines: Iterable[Line], name: str) -> list[float | None]:
    """Means of `objective_em` and its like by place in the question `[objectives]`, question by question first."""
    sound = [line for line in lines if counts(line) and line.get(name)]
    places = max((len(line[name]) for line in sound), default=0)
    return [
        mean_of(question_means((line["question_id"], line[name][i]) for line in sound if i < len(line[name])))
        for i in range(places)
    ]


def summarise(lines: Sequence[Line], more: Sequence[str] = ()) -> dict[str, Any]:
    """Measures of rollouts of one agent and one number of objectives. `more`: further keys of the lines to average.

    `questions` and `rollouts` are counts, `errors` and `unscored` are rollouts that do not count: they enter no mean.
    With several samples a question, `pass@k` is the share of questions of which one of k samples is right.
    """
    out: dict[str, Any] = {"questions": float(len({line["question_id"] for line in lines}))}
    if all("num_turns" in line for line in lines):
        out |= aggregate(lines, [StopReason(line["stop"]) for line in lines])
    else:  # predictions of another program: answers are all there is
        errors = sum(bool(line.get("is_error")) for line in lines)
        left_out = {"errors": float(errors), "unscored": float(sum(map(unscored, lines)))}
        out |= {"rollouts": float(len(lines)), **left_out}
    for name, means in means_of(lines, (*AVERAGED, *more)).items():
        out[name] = mean_of(means)
    for name in ("objective_em", "objective_f1", "objective_sub_em"):
        if found := objective_means(lines, name):
            out[name] = found
    k = samples_per_question(lines)
    if k > 1:
        out[f"pass@{k}"] = pass_rate(lines, k)
    return out
