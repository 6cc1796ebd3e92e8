"""Arms of a study against each other. The unit is the seed, a start of its own that the arms share: pairs are compared.

Several RL seeds on one start are averaged first. Where a study has one seed and several RL seeds, these are the unit:
then intervals hold the noise of RL on this one start, and nothing of the noise of starts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mempo.evaluate.stats import Comparison, compare_paired, mean_of, question_means, student_interval
from mempo.rewards.rollout_metrics import mean
from mempo.study.plan import Task
from mempo.study.record import Record

Unit = Literal["seeds", "RL seeds"]
START = "(start)"
"""The row of the policy that RL begins from."""
Value = Callable[[Record], float | None]


@dataclass(frozen=True)
class Metric:
    """A number of a run, in points of a hundred where `percent`."""

    name: str
    header: str
    value: Value
    percent: bool = True


@dataclass(frozen=True)
class Spread:
    """A metric of an arm over its units; None: no run of it is finished."""

    mean: float | None
    low: float | None
    high: float | None
    units: int


@dataclass(frozen=True)
class Row:
    """An arm from one start; `start` None arms are the starts themselves. `by_metric`: in the study's metrics.
    `against`: the paired difference to the baseline arm, of the metrics that are compared."""

    arm: str
    runs: int
    by_metric: Mapping[str, Spread]
    against: Mapping[str, Comparison]
    cpu_s: float | None


@dataclass(frozen=True)
class Section:
    """What came of one start. `questions`: how many the evaluations hold of each number of objectives, fewest and most.
    `trained`: the numbers of objectives of RL, where an environment makes the questions. `single`: one run of each arm,
    so nothing to take a mean of, and no pairs."""

    start: str
    unit: Unit
    metrics: tuple[Metric, ...]
    compared: tuple[Metric, ...]
    rows: tuple[Row, ...]
    questions: tuple[int, int] | None = None
    trained: tuple[int, ...] = ()
    single: bool = False


def sections(done: Sequence[tuple[Task, Record]], baseline: str) -> list[Section]:
    """One for each start with a finished arm, in the order of the runs; arms likewise, the start itself first."""
    starts = {task.key: record for task, record in done if task.arm is None}
    found = []
    for name in dict.fromkeys(task.start for task, _ in done if task.arm is not None):
        runs = [(task, record) for task, record in done if task.start == name and task.arm is not None]
        began = {task.after: task.seed for task, _ in runs}
        own = [(seed, starts[key]) for key, seed in began.items() if key in starts]
        found.append(_section(name, runs, own, baseline))
    return found


def _section(
    name: str, runs: Sequence[tuple[Task, Record]], starts: Sequence[tuple[int, Record]], baseline: str
) -> Section:
    unit: Unit = (
        "RL seeds" if len({t.seed for t, _ in runs}) == 1 and len({t.rl_seed for t, _ in runs}) > 1 else "seeds"
    )
    ks = sorted({k for _, record in runs for k in record["evaluation"]}, key=int)
    single = len(starts) <= 1 and len(runs) == len({task.arm for task, _ in runs})
    compared = (*(_evaluated(k) for k in ks), *((_mean_em(ks),) if len(ks) > 1 and not single else ()))
    metrics = (*compared, *(_SAMPLED_OF_ONE if single else _SAMPLED))
    units = {
        arm: [(_unit_of(task, unit), record) for task, record in runs if task.arm == arm]
        for arm in dict.fromkeys(task.arm for task, _ in runs if task.arm is not None)
    }
    of_starts = [(str(seed), record) for seed, record in starts]
    rows = [Row(START, len(starts), _spreads(of_starts, metrics), {}, _cpu(of_starts))] if starts else []
    for arm, found in units.items():
        pairs = {}
        if arm != baseline and baseline in units:
            pairs = {m.name: compare_runs(_values(units[baseline], m), _values(found, m)) for m in compared}
        rows.append(Row(arm, len(found), _spreads(found, metrics), pairs, _cpu(found)))
    asked = [n for _, r in (*runs, *starts) for found in r["evaluation"].values() if (n := _scored(found)) is not None]
    trained = sorted(
        {k for task, _ in runs if (asks := task.resolved.config.data).environment for k in asks.objectives}
    )
    questions = (min(asked), max(asked)) if asked else None
    return Section(name, unit, metrics, compared, tuple(rows), questions, tuple(trained), single)


def compare_runs(first: Mapping[str, float], second: Mapping[str, float]) -> Comparison:
    """Second minus first over the units that both have: sign-flip test, and Student's interval in place of the
    bootstrap's, which is far too narrow for a handful of seeds."""
    low, high = student_interval([second[unit] - first[unit] for unit in first if unit in second])
    return dataclasses.replace(compare_paired(first, second), low=low, high=high)


def first_part(curve: Sequence[float | None]) -> float | None:
    """Mean over the first fifth of a curve, at least one point."""
    return mean(curve[: max(1, len(curve) // 5)])


def last_part(curve: Sequence[float | None]) -> float | None:
    """Mean over the last fifth of a curve, at least one point."""
    return mean(curve[-max(1, len(curve) // 5) :])


def half_right(curve: Mapping[str, Sequence[float | None]]) -> float | None:
    """The first step of which at least half of the rollouts were all right; None: there was none."""
    steps = zip(curve.get("step", ()), curve.get("em", ()), strict=False)
    return next((step for step, em in steps if em is not None and em >= 0.5), None)


def _evaluated(k: str) -> Metric:
    return Metric(f"em@{k}", f"EM@{k}", lambda record: _em(record, k))


def _mean_em(ks: Sequence[str]) -> Metric:
    def value(record: Record) -> float | None:
        values = [_em(record, k) for k in ks]
        return None if None in values else mean(values)

    return Metric("em", "mean EM", value)


def _em(record: Record, k: str) -> float | None:
    return record["evaluation"].get(k, {}).get("em")


def _curve(name: str, part: Callable[[Sequence[float | None]], float | None]) -> Value:
    return lambda record: part(values) if (values := record.get("curve", {}).get(name)) else None


_SAMPLED = (
    Metric(
        "right_first",
        "right, first",
        lambda r: first_part(list(r.get("objectives_right", {}).values()) or [None]),
    ),
    Metric("right_last", "right, last", lambda r: last_part(list(r.get("objectives_right", {}).values()) or [None])),
    Metric("format_last", "format, last", _curve("format_ok", last_part)),
)
"""Of the rollouts of training; the shares of objectives are of the steps whose rollouts were saved."""


_SAMPLED_OF_ONE = (
    Metric("sampled_first", "first fifth", _curve("em", first_part)),
    Metric("sampled_last", "last fifth", _curve("em", last_part)),
    Metric("half", "half right at step", lambda record: half_right(record.get("curve", {})), percent=False),
    Metric("format_last", "format kept", _curve("format_ok", last_part)),
)
"""Of a single run: the share of sampled rollouts that were all right, at both ends of training; when it took off."""


def _scored(found: Mapping[str, Any]) -> int | None:
    """The questions of an evaluation that count: some may have failed for infrastructure reasons."""
    number = found.get("scored_questions", found.get("questions"))
    return None if number is None else int(number)


def _unit_of(task: Task, unit: Unit) -> str:
    return str(task.seed if unit == "seeds" else task.rl_seed)


def _values(units: Sequence[tuple[str, Record]], metric: Metric) -> dict[str, float]:
    return question_means((unit, metric.value(record)) for unit, record in units)


def _spreads(units: Sequence[tuple[str, Record]], metrics: Sequence[Metric]) -> dict[str, Spread]:
    spreads = {}
    for metric in metrics:
        values = _values(units, metric)
        ends = (min(values.values()), max(values.values())) if values else (None, None)
        spreads[metric.name] = Spread(mean_of(values), *ends, len(values))
    return spreads


def _cpu(units: Sequence[tuple[str, Record]]) -> float | None:
    return mean([cpu_seconds(record) for _, record in units])


def cpu_seconds(record: Mapping[str, Any]) -> float | None:
    """CPU seconds of a run that one process made from its beginning to its end; None for others."""
    return None if record["resumed"] or not record["seconds"] else record["seconds"]["cpu"]
