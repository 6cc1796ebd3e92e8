"""Agents side by side: measures with intervals by number of objectives, and each agent against the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from mempo.evaluate.stats import Comparison, Estimate, bootstrap, compare_paired
from mempo.evaluate.summary import by_objectives, means_of, pass_rate, samples_per_question
from mempo.measures import counts, unscored

Form = Literal["percent", "number", "whole"]


@dataclass(frozen=True)
class Column:
    """A measure in a table. `optional`: left out when no row knows it."""

    name: str
    header: str
    form: Form
    optional: bool = True
    short: str = ""
    """The header on a terminal, where room is short; default: `header`."""


COLUMNS = (
    Column("em", "EM", "percent", optional=False),
    Column("f1", "F1", "percent", optional=False),
    Column("sub_em", "sub-EM", "percent"),
    Column("mean_em", "EM per objective", "percent"),
    Column("score", "score", "number"),
    Column("judge", "judge", "percent"),
    Column("format_ok", "format", "percent", short="format"),
    Column("total_tokens", "total tokens", "whole", short="total"),
    Column("peak_context_tokens", "peak context", "whole", short="peak"),
    Column("dependency", "dependency", "whole", short="depend."),
    Column("mem1_peak_tokens", "MEM1 peak", "whole"),
    Column("read_tokens", "read tokens", "whole"),
    Column("written_tokens", "written tokens", "whole"),
    Column("note_tokens", "note tokens", "number", short="note"),
    Column("p_mem", "P(mem)", "number"),
    Column("turns", "turns", "number"),
    Column("tool_calls", "tool calls", "number", short="calls"),
    Column("seconds", "seconds", "number", short="s"),
)
ON_SCREEN = (
    "em",
    "f1",
    "sub_em",
    "judge",
    "format_ok",
    "total_tokens",
    "peak_context_tokens",
    "dependency",
    "note_tokens",
    "p_mem",
    "turns",
    "tool_calls",
    "seconds",
)
PAIRED = ("em", "f1")


@dataclass(frozen=True)
class Entry:
    """One agent of one run: `lines` are its rollouts without tokens, of any number of objectives."""

    label: str
    lines: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Row:
    """One agent at one number of objectives. `questions` have at least one rollout that counts; `errors` are rollouts
    that infrastructure spoiled: they are in no estimate. `pass_k` None: one sample a question."""

    objectives: int
    label: str
    questions: int
    rollouts: int
    errors: int
    estimates: Mapping[str, Estimate]
    samples: int = 1
    pass_k: float | None = None


@dataclass(frozen=True)
class Pair:
    """`second` against `first` on the questions that both have."""

    objectives: int
    measure: str
    first: str
    second: str
    found: Comparison


@dataclass(frozen=True)
class Report:
    """`columns`: those with something in them."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    pairs: tuple[Pair, ...] = ()
    remarks: tuple[str, ...] = field(default=())


def compare(entries: Sequence[Entry], more: Sequence[str] = (), seed: int = 0, pairs: bool = True) -> Report:
    """The table of several agents. `more`: names of further measures of the lines (published scores). With `pairs` the
    others are compared with the first entry."""
    columns = (*COLUMNS, *(Column(name, name, "number") for name in more))
    rows, compared, remarks = [], [], []
    grouped = [(entry.label, by_objectives(entry.lines)) for entry in entries]
    for k in sorted({k for _, groups in grouped for k in groups}):
        here = [(label, groups[k]) for label, groups in grouped if k in groups]
        means = {label: means_of(lines, [c.name for c in columns]) for label, lines in here}
        rows += [_row(k, label, lines, means[label], seed) for label, lines in here]
        for label, lines in here:
            if left_out := sum(map(unscored, lines)):
                remarks.append(f"{k} objectives: {left_out} rollouts of {label} have no score and are in no average")
        first = here[0][0]
        for label, _ in here[1:] if pairs else ():
            for name in PAIRED:
                found = compare_paired(means[first][name], means[label][name], seed)
                compared.append(Pair(k, name, first, label, found))
            if 0 < (common := compared[-1].found.questions) < max(len(means[first]["em"]), len(means[label]["em"])):
                remarks.append(f"{k} objectives: {first} and {label} are compared on the {common} questions both have")
            elif not common:
                remarks.append(f"{k} objectives: {first} and {label} have no scored question in common")
    kept = tuple(c for c in columns if not c.optional or any(row.estimates[c.name].mean is not None for row in rows))
    return Report(kept, tuple(rows), tuple(compared), tuple(remarks))


def _row(
    k: int, label: str, lines: Sequence[Mapping[str, Any]], means: Mapping[str, Mapping[str, float]], seed: int
) -> Row:
    errors = sum(bool(line.get("is_error")) for line in lines)
    samples = samples_per_question(lines)
    return Row(
        objectives=k,
        label=label,
        questions=len({line["question_id"] for line in lines if counts(line)}),
        rollouts=len(lines),
        errors=errors,
        estimates={name: bootstrap(values, seed) for name, values in means.items()},
        samples=samples,
        pass_k=pass_rate(lines, samples) if samples > 1 else None,
    )


def shown(value: float | None, form: Form) -> str:
    """A number as tables show it; None is a dash."""
    if value is None:
        return "–"
    if form == "percent":
        return f"{100 * value:.1f}%"
    if form == "whole":
        return f"{value:.0f}"
    return f"{value:.2f}" if abs(value) < 100 else f"{value:.0f}"


def interval(estimate: Estimate, form: Form) -> str:
    """`low–high`, or nothing where there is no interval."""
    if estimate.low is None or estimate.high is None:
        return ""
    return f"{shown(estimate.low, form)}–{shown(estimate.high, form)}"
