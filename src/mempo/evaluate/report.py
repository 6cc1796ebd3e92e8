"""Tables for the terminal: of the evaluations within a training run, and of agents side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from mempo.evaluate.compare import ON_SCREEN, Column, Report, Row, part_of, shown
from mempo.evaluate.export import pass_cell, pass_header

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


def evaluation_table(results: Sequence[tuple[str, ByObjectives]], title: str) -> Table:
    """`results`: (name of the policy, measures by number of objectives)."""
    table = Table(title=title, title_justify="left")
    for name in ("objectives", "n", "policy", *(text for _, text, _ in COLUMNS)):
        table.add_column(name, justify="left" if name == "policy" else "right")
    ks = sorted({k for _, measures in results for k in measures})
    for k in ks:
        for name, measures in results:
            if k in measures:
                table.add_row(str(k), _n(measures[k]), name, *cells(measures[k]))
        table.add_section()
    return table


def _n(measures: Mapping[str, Any]) -> str:
    asked = measures.get("questions")
    if asked is None:
        return _show(None, "")
    scored = measures.get("scored_questions")  # evaluations of earlier versions lack it
    return part_of(int(asked if scored is None else scored), int(asked))


def cells(measures: Mapping[str, Any]) -> list[str]:
    return [_show(measures.get(name), form) for name, _, form in COLUMNS]


def report_table(report: Report, title: str) -> Table:
    """Agents side by side, narrow enough for 120 characters."""
    columns = [column for column in report.columns if column.name in ON_SCREEN]
    table = Table(title=escape(title), title_justify="left", padding=(0, 1, 0, 0), box=box.SIMPLE_HEAD)
    names = [column.short or column.header for column in columns]
    heads: list[str] = ["k", "agent", "n", *names, *pass_header(report), "err"]
    for name in heads:
        table.add_column(escape(name), justify="left" if name == "agent" else "right", no_wrap=name != "agent")
    for i, row in enumerate(report.rows):
        if i and row.objectives != report.rows[i - 1].objectives:
            table.add_section()
        found = [_estimate(row, column) for column in columns]
        last = [*pass_cell(report, row), str(row.errors)]
        table.add_row(*map(escape, [str(row.objectives), row.label, row.n, *found, *last]))
    return table


def scores_table(report: Report, names: Sequence[str]) -> Table:
    """The measures of published scorers, such as `mem1/f1`, by scorer."""
    columns = [column for column in report.columns if column.name in names]
    table = Table(title="published scorers, as they count", title_justify="left", box=box.SIMPLE_HEAD)
    for name in ("k", "agent", "n", *(column.header for column in columns)):
        table.add_column(escape(name.replace("/", " ")), justify="left" if name == "agent" else "right")
    for i, row in enumerate(report.rows):
        if i and row.objectives != report.rows[i - 1].objectives:
            table.add_section()
        values = [shown(row.estimates[column.name].mean, column.form) for column in columns]
        table.add_row(*map(escape, [str(row.objectives), row.label, row.n, *values]))
    return table


def _estimate(row: Row, column: Column) -> str:
    """The mean; of exact match and a judge's verdicts the interval too, in whole per cent."""
    estimate = row.estimates[column.name]
    text = shown(estimate.mean, column.form)
    if column.name not in ("em", "judge") or estimate.low is None or estimate.high is None:
        return text
    return f"{text} [{100 * estimate.low:.0f}–{100 * estimate.high:.0f}]"


def _show(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)
