"""The first screen: a line a check, what to change below it, and the notes by turn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from mempo.diagnose.alarms import LOOK, UNKNOWN, number
from mempo.errors import counted

TURN_COLUMNS = (
    ("turn", "turn", "{:.0f}"),
    ("notes", "notes", "{:.0f}"),
    ("note_tokens", "tokens", "{:.1f}"),
    ("p_mem_raw", "P(mem)", "{:.3f}"),
    ("p_mem_in_r", "P(mem) in r", "{:.3f}"),
    ("note", "P(mem) now", "{:.3f}"),
    ("p_base", "P(base)", "{:.3f}"),
    ("r", "r", "{:+.3f}"),
    ("history", "P(history) now", "{:.3f}"),
    ("credit_question", "credit if pool: question", "{:+.2f}"),
    ("credit_turn", "if pool: turn", "{:+.2f}"),
    ("credit", "credit given", "{:+.2f}"),
)


def diagnosis_table(report: Mapping[str, Any]) -> Group:
    """Head line, remarks, checks with what to change, and the notes by turn."""
    rollouts = report["rollouts"]
    head = (
        f"{report['run']}, {rollouts['file']}: {rollout_counts(rollouts)}, mean score "
        f"{number(report['score'], '{:.3g}')}"
    )
    remarks = [Text(f"note: {printable(remark)}") for remark in report["remarks"]]
    return Group(Text(printable(head)), *remarks, _checks(report), *_changes(report), Text(), _turns(report))


def rollout_counts(rollouts: Mapping[str, Any]) -> str:
    of = counted(rollouts["groups"], "question")
    return f"{counted(rollouts['rollouts'], 'rollout')} of {of}, {counted(rollouts['notes'], 'note')}"


def printable(text: str) -> str:
    """A line of outside text for a terminal: control characters, which a terminal would obey, become `?`."""
    return "".join(char if char.isprintable() else " " if char.isspace() else "?" for char in text)


def _checks(report: Mapping[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for header, justify in (("measure", "left"), ("value", "right"), ("healthy", "left"), ("", "left")):
        table.add_column(header, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    table.add_column("what it is")
    for check in report["checks"]:
        if check["verdict"] != UNKNOWN:
            mark = Text("look", style="bold yellow") if check["verdict"] == LOOK else Text("ok", style="green")
            cells = (Text(check[name]) for name in ("label", "shown", "healthy"))
            table.add_row(*cells, mark, Text(check["meaning"]))
    return table


def _changes(report: Mapping[str, Any]) -> list[Text | Padding]:
    lines: list[Text | Padding] = []
    for check in report["checks"]:
        if check["change"]:
            lines.append(Padding(Text(f"look: {check['label']}: {check['change']}"), (0, 0, 0, 1)))
    unknown = [check["label"] for check in report["checks"] if check["verdict"] == UNKNOWN]
    if unknown:
        lines.append(Padding(Text(f"not known here: {'; '.join(unknown)}", style="dim"), (0, 0, 0, 1)))
    return lines


def _turns(report: Mapping[str, Any]) -> Table:
    """Columns of which nothing is known are left out. "in r": past the threshold and with what was looked ahead, where
    that is another number; "now": by the policy that was asked, where the run saved none."""
    asked = {row["turn"]: row for row in (report["control"] or {}).get("by_turn", [])}
    has_saved = any(row["p_mem_raw"] is not None for row in report["by_turn"])
    differs = any(row["p_mem"] != row["p_mem_raw"] for row in report["by_turn"])
    rows = [
        {
            **row,
            "p_mem_in_r": row["p_mem"] if differs else None,
            "note": None if has_saved else asked.get(row["turn"], {}).get("note"),
            "history": asked.get(row["turn"], {}).get("history"),
        }
        for row in report["by_turn"]
    ]
    title = "means over the notes of each turn (the first turn's note is never scored)"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    known = [column for column in TURN_COLUMNS if any(row[column[0]] is not None for row in rows)]
    for _, header, _ in known:
        table.add_column(header, justify="right")
    for row in rows:
        table.add_row(*(number(row[name], form) for name, _, form in known))
    return table
