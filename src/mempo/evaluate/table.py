"""The table of an evaluation: one line per number of objectives and policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table

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

ByObjectives = Mapping[int, Mapping[str, float | None]]


def evaluation_table(results: Sequence[tuple[str, ByObjectives]], title: str) -> Table:
    """`results`: (name of the policy, measures by number of objectives)."""
    table = Table(title=title, title_justify="left")
    for header in ("objectives", "n", "policy", *(header for _, header, _ in COLUMNS)):
        table.add_column(header, justify="left" if header == "policy" else "right")
    ks = sorted({k for _, measures in results for k in measures})
    for k in ks:
        for name, measures in results:
            if k in measures:
                table.add_row(str(k), _show(measures[k].get("questions"), "{:.0f}"), name, *cells(measures[k]))
        table.add_section()
    return table


def cells(measures: Mapping[str, float | None]) -> list[str]:
    return [_show(measures.get(name), form) for name, _, form in COLUMNS]


def _show(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)
