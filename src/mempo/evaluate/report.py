"""Tables for the terminal: of the evaluations within a training run, and of agents side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mempo.evaluate.compare import ON_SCREEN, Column, Report, Row, part_of, shown
from mempo.evaluate.export import pass_cell, pass_header
from mempo.evaluate.grid import Grid, rules_between

COLUMNS = (
    ("em", "EM", "{:.1%}"),
    ("f1", "F1", "{:.1%}"),
    ("format_ok", "format", "{:.1%}"),
    ("memory/p_mem_raw", "P(mem)", "{:.3f}"),
    ("note_tokens", "note tokens", "{:.1f}"),
    ("peak_context_tokens", "peak context", "{:.0f}"),
    ("total_tokens", "total tokens", "{:.0f}"),
    ("turns", "turns", "{:.1f}"),
    ("errors", "errors", "{:.0f}"),
)

ByObjectives = Mapping[int, Mapping[str, Any]]


def evaluation_table(results: Sequence[tuple[str, ByObjectives]], title: str) -> Grid:
    """`results`: (name of the policy, metrics by number of objectives)."""
    found = [
        (k, name, of_k[k]) for k in sorted({k for _, m in results for k in m}) for name, of_k in results if k in of_k
    ]
    rows = [[str(k), _n(metrics), name, *cells(metrics)] for k, name, metrics in found]
    headers = ("k", "n", "policy", *(text for _, text, _ in COLUMNS))
    return Grid(headers, rows, ("policy",), title, rules_between([k for k, _, _ in found]), keys=3)


def _n(metrics: Mapping[str, Any]) -> str:
    asked = metrics.get("questions")
    if asked is None:
        return _show(None, "")
    scored = metrics.get("scored_questions")  # evaluations of earlier versions lack it
    return part_of(int(asked if scored is None else scored), int(asked))


def cells(metrics: Mapping[str, Any]) -> list[str]:
    return [_show(metrics.get(name), form) for name, _, form in COLUMNS]


def report_table(report: Report, title: str) -> Grid:
    """Agents side by side."""
    columns = [column for column in report.columns if column.name in ON_SCREEN]
    heads = [*(column.short or column.header for column in columns), *pass_header(report), "err"]
    return _agents_table(
        report,
        title,
        heads,
        [[*(_estimate(row, c) for c in columns), *pass_cell(report, row), str(row.errors)] for row in report.rows],
    )


def scores_table(report: Report, names: Sequence[str]) -> Grid:
    """The metrics of published scorers, such as `mem1/f1`, by scorer."""
    columns = [column for column in report.columns if column.name in names]
    values = [[shown(row.estimates[column.name].mean, column.form) for column in columns] for row in report.rows]
    heads = [column.header.replace("/", " ") for column in columns]
    return _agents_table(report, "published scorers, as they count", heads, values)


def _agents_table(report: Report, title: str, heads: Sequence[str], values: Sequence[Sequence[str]]) -> Grid:
    rows = [[str(row.objectives), row.label, row.n, *cells] for row, cells in zip(report.rows, values, strict=True)]
    rules = rules_between([row.objectives for row in report.rows])
    return Grid(("k", "agent", "n", *heads), rows, ("agent",), title, rules, keys=3)


def _estimate(row: Row, column: Column) -> str:
    """The mean; of exact match and a judge's verdicts the interval too, in whole per cent."""
    estimate = row.estimates[column.name]
    text = shown(estimate.mean, column.form)
    if column.name not in ("em", "judge") or estimate.low is None or estimate.high is None:
        return text
    return f"{text} [{100 * estimate.low:.0f}–{100 * estimate.high:.0f}]"


def _show(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)
