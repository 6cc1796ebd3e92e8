"""Agents side by side: metrics with intervals by number of objectives, and each agent against the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from mempo.errors import counted
from mempo.evaluate.metrics import (
    PassRate,
    by_objectives,
    means_of,
    most_samples,
    pass_rate,
    samples_of,
    scored_questions,
)
from mempo.evaluate.published_scores import SUMMED
from mempo.evaluate.stats import Comparison, Estimate, bootstrap, compare_paired, share
from mempo.rewards.rollout_metrics import unscored

Form = Literal["percent", "number", "whole"]


@dataclass(frozen=True)
class Column:
    """A metric in a table. `optional`: left out when no row knows it. `share`: it lies between 0 and 1."""

    name: str
    header: str
    form: Form
    optional: bool = True
    short: str = ""
    """The header on a terminal, where room is short; default: `header`."""
    share: bool = False


COLUMNS = (
    Column("em", "EM", "percent", optional=False, share=True),
    Column("f1", "F1", "percent", optional=False, share=True),
    Column("sub_em", "sub-EM", "percent", share=True),
    Column("mean_em", "EM per objective", "percent", share=True),
    Column("score", "score", "number", share=True),
    Column("judge", "judge", "percent", share=True),
    Column("format_ok", "format", "percent", short="format", share=True),
    Column("total_tokens", "total tokens", "whole", short="total"),
    Column("peak_context_tokens", "peak context", "whole", short="peak"),
    Column("dependency", "dependency", "whole", short="depend."),
    Column("mem1_peak_tokens", "MEM1 peak", "whole"),
    Column("read_tokens", "read tokens", "whole"),
    Column("written_tokens", "written tokens", "whole"),
    Column("note_tokens", "note tokens", "number", short="note"),
    Column("p_mem", "P(mem)", "number", share=True),
    Column("turns", "turns", "number"),
    Column("tool_calls", "tool calls", "number", short="calls"),
    Column("seconds", "seconds", "number", short="s"),
)
_IN_FILES = ("mean_em", "score", "mem1_peak_tokens", "read_tokens", "written_tokens")
ON_SCREEN = tuple(column.name for column in COLUMNS if column.name not in _IN_FILES)
PAIRED = ("em", "f1")


@dataclass(frozen=True)
class Asked:
    """What an evaluation was asked for: questions by number of objectives, and samples of each."""

    questions: Mapping[int, int] = field(default_factory=dict)
    samples: int | None = None


@dataclass(frozen=True)
class Entry:
    """One agent of one run: `lines` are its rollouts without tokens, of any number of objectives. `asked` tells what is
    not in the lines, such as questions that were not played yet."""

    label: str
    lines: Sequence[Mapping[str, Any]]
    asked: Asked = Asked()


@dataclass(frozen=True)
class Row:
    """One agent at one number of objectives. The estimates rest on `questions` of the `asked` ones; `errors` are
    rollouts that failed for infrastructure reasons: they are in no estimate. `pass_k`: pass@`samples` on the
    `pass_questions` questions that have so many; None with one sample a question."""

    objectives: int
    label: str
    questions: int
    asked: int
    rollouts: int
    errors: int
    estimates: Mapping[str, Estimate]
    samples: int = 1
    pass_k: float | None = None
    pass_questions: int = 0

    @property
    def n(self) -> str:
        """`6`, or `3 of 6` where some of the questions asked are in no estimate."""
        return part_of(self.questions, self.asked)


@dataclass(frozen=True)
class Pair:
    """`second` against `first` on the questions that both have."""

    objectives: int
    metric: str
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


def compare(
    entries: Sequence[Entry],
    more: Sequence[str] = (),
    seed: int = 0,
    pairs: bool = True,
    notes: Sequence[str] = (),
) -> Report:
    """The table of several agents. `more`: names of further metrics of the lines (published scores). With `pairs` the
    others are compared with the first entry. `notes`: what else is to stand below the table."""
    columns = (*COLUMNS, *(Column(name, name, "number", share=True) for name in more))
    rows, compared, remarks = [], [], []
    grouped = [
        (entry, {**{k: [] for k, n in entry.asked.questions.items() if n}, **by_objectives(entry.lines)})
        for entry in entries
    ]
    for k in sorted({k for _, groups in grouped for k in groups}):
        here = [(entry, groups[k]) for entry, groups in grouped if k in groups]
        means = {entry.label: means_of(lines, [c.name for c in columns]) for entry, lines in here}
        for entry, lines in here:
            rows.append(_row(k, entry, lines, columns, means[entry.label], seed))
            remarks += [*_unscored_remark(rows[-1], lines), *_pass_remark(rows[-1], lines), *_fewer_remarks(rows[-1])]
        first = here[0][0].label
        for entry, _ in here[1:] if pairs else ():
            label = entry.label
            for name in PAIRED:
                found = compare_paired(means[first][name], means[label][name], seed)
                compared.append(Pair(k, name, first, label, found))
            if 0 < (common := compared[-1].found.questions) < max(len(means[first]["em"]), len(means[label]["em"])):
                both = f"{first} and {label} are compared on the {counted(common, 'question')} that both have"
                remarks.append(f"{counted(k, 'objective')}: {both}")
            elif not common:
                remarks.append(f"{counted(k, 'objective')}: {first} and {label} have no scored question in common")
    remarks += _gold_remarks(entries) if pairs else []
    kept = tuple(c for c in columns if not c.optional or any(row.estimates[c.name].mean is not None for row in rows))
    return Report(kept, tuple(rows), tuple(compared), (*remarks, *notes))


def _row(
    k: int,
    entry: Entry,
    lines: Sequence[Mapping[str, Any]],
    columns: Sequence[Column],
    means: Mapping[str, Mapping[str, float]],
    seed: int,
) -> Row:
    samples = entry.asked.samples or most_samples(lines)
    rate = pass_rate(lines, samples) if samples > 1 else PassRate(None, 0)
    return Row(
        objectives=k,
        label=entry.label,
        questions=scored_questions(lines, means),
        asked=max(entry.asked.questions.get(k, 0), len({line["question_id"] for line in lines})),
        rollouts=len(lines),
        errors=sum(bool(line.get("is_error")) for line in lines),
        estimates={column.name: _estimate(column, k, means[column.name], seed) for column in columns},
        samples=samples,
        pass_k=rate.value,
        pass_questions=rate.questions,
    )


def _estimate(column: Column, objectives: int, values: Mapping[str, float], seed: int) -> Estimate:
    if not column.share:
        return bootstrap(values, seed)
    return share(values, objectives if column.name in SUMMED else 1, seed)


def _unscored_remark(row: Row, lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Rollouts that did not fail for infrastructure reasons, and that do not count all the same."""
    left_out = sum(map(unscored, lines))
    if not left_out:
        return []
    rest = f"{counted(left_out, 'rollout')} without a score {'is' if left_out == 1 else 'are'} in no average"
    return [f"k = {row.objectives}: {row.label}: {rest}"]


def _pass_remark(row: Row, lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """What can be said of all questions where some lack samples that were asked for."""
    if row.samples < 2 or row.pass_questions >= row.asked:
        return []
    have = f"{part_of(row.pass_questions, row.asked)} {'question' if row.asked == 1 else 'questions'}"
    text = f"k = {row.objectives}: {row.label}: pass@{row.samples} rests on {have} with {row.samples} scored samples"
    fewest = min(map(len, samples_of(lines).values()), default=0)
    if 1 < fewest < row.samples:
        rate = pass_rate(lines, fewest)
        text += f"; pass@{fewest} is {shown(rate.value, 'percent')} on {counted(rate.questions, 'question')}"
    return [text]


def _fewer_remarks(row: Row) -> list[str]:
    """Metrics that rest on fewer questions than the row's n: a score of one's own or a judge may say nothing."""
    found = [(name, row.estimates[name].questions) for name in ("score", "judge")]
    return [
        f"k = {row.objectives}: {row.label}: the {name} rests on {n} of {counted(row.questions, 'question')}"
        for name, n in found
        if 0 < n < row.questions
    ]


def _gold_remarks(entries: Sequence[Entry]) -> list[str]:
    """Rollouts whose question has no gold answer: EM, F1 and their like say nothing of them."""
    found = []
    for entry in entries:
        without = sum("gold" in line and line["gold"] is None for line in entry.lines)
        if without and without == len(entry.lines):
            found.append(f"{entry.label}: no question has a gold answer, so EM and F1 are not known")
        elif without:
            of = f"{without} of {counted(len(entry.lines), 'rollout')}"
            found.append(f"{entry.label}: {of} answer questions without a gold answer and are not in EM and F1")
    return found


def part_of(number: int, whole: int) -> str:
    return str(number) if number >= whole else f"{number} of {whole}"


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
