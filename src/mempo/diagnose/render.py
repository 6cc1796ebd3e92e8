"""A diagnosis for people: the same tables on a terminal and in `diagnosis.md`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.padding import Padding
from rich.text import Text

from mempo.diagnose.verdicts import LOOK, OK, UNKNOWN, number
from mempo.errors import counted
from mempo.evaluate.grid import Grid, markdown_text, printable

MARKS = {OK: Text("ok", style="green"), LOOK: Text("look", style="bold yellow")}
TURN_COLUMNS = (
    ("turn", "turn", "{:.0f}"),
    ("notes", "notes", "{:.0f}"),
    ("note_tokens", "tokens", "{:.1f}"),
    ("p_mem_raw", "P(mem)", "{:.3f}"),
    ("p_mem_in_r", "P(mem) in r", "{:.3f}"),
    ("now_note", "P(mem) now", "{:.3f}"),
    ("p_baseline", "P(baseline)", "{:.3f}"),
    ("r", "r", "{:+.3f}"),
    ("now_history", "P(history) now", "{:.3f}"),
    ("advantage_question", "advantage if pool: question", "{:+.2f}"),
    ("advantage_turn", "if pool: turn", "{:+.2f}"),
    ("advantage", "advantage given", "{:+.2f}"),
)
TURNS_TITLE = "means over the notes of each turn (the first turn's note is never scored)"


def screen(report: Mapping[str, Any]) -> Group:
    """Head line, warnings, checks with what to change, and the notes by turn."""
    head = f"{report['run']}, {report['rollouts']['file']}: {_counts(report)}, mean score "
    lines = [head + number(report["score"], "{:.3g}"), *(f"note: {warning}" for warning in report["warnings"])]
    known = [check for check in report["checks"] if check["verdict"] != UNKNOWN]
    rows = [[c["label"], c["shown"], c["healthy"], MARKS[c["verdict"]], c["meaning"]] for c in known]
    checks = Grid(
        ("measure", "value", "healthy", "", "what it is"),
        rows,
        words=("measure", "healthy", "", "what it is"),
    )
    after = [Text(f"look: {check['label']}: {check['change']}") for check in known if check["change"]]
    unknown = [check["label"] for check in report["checks"] if check["verdict"] == UNKNOWN]
    after += [Text(f"not known here: {'; '.join(unknown)}", style="dim")] if unknown else []
    indented = [Padding(text, (0, 0, 0, 1)) for text in after]
    return Group(*map(Text, map(printable, lines)), checks, *indented, Text(), turns(report))


def turns(report: Mapping[str, Any]) -> Grid:
    """Columns of which nothing is known are left out. "in r": past the threshold and with lookahead, where that is
    another number; "now": by the policy that was asked, where the run saved none."""
    has_saved = any(row["p_mem_raw"] is not None for row in report["by_turn"])
    differs = any(row["p_mem"] != row["p_mem_raw"] for row in report["by_turn"])
    rows = [
        row | {"p_mem_in_r": row["p_mem"] if differs else None} | ({"now_note": None} if has_saved else {})
        for row in report["by_turn"]
    ]
    shown = [column for column in TURN_COLUMNS if any(row.get(column[0]) is not None for row in rows)]
    cells = [[number(row.get(name), form) for name, _, form in shown] for row in rows]
    return Grid([header for _, header, _ in shown], cells, title=TURNS_TITLE)


def page(report: Mapping[str, Any]) -> str:
    """Markdown. Outside text is in code blocks, which it cannot close."""
    checks = Grid(
        ("measure", "value", "healthy", "", "what it is; what to change"),
        [
            [c["label"], c["shown"], c["healthy"], "" if c["verdict"] == UNKNOWN else c["verdict"], _sentence(c)]
            for c in report["checks"]
        ],
        words=("measure", "healthy", "", "what it is; what to change"),
    )
    lines = [
        "# Diagnosis",
        "",
        f"{_counts(report)}, from {markdown_text(report['rollouts']['file'])} of {markdown_text(report['run'])}.",
        "",
        *(f"- {markdown_text(warning)}" for warning in report["warnings"]),
        "",
        checks.markdown(),
        f"{TURNS_TITLE[0].upper()}{TURNS_TITLE[1:]}:",
        "",
        turns(report).markdown().rstrip(),
    ]
    for figure in report["figures"]:
        lines += ["", f"## {figure['title']}", "", f"![{figure['title']}]({figure['png']})", "", figure["caption"]]
    if report["examples"]:
        lines += ["", "## Notes to read"]
    for example in report["examples"]:
        lines += ["", f"### {example['kind'][:1].upper()}{example['kind'][1:]}", ""]
        values = [f"turn {example['turn']}"]
        values += [f"r {example['r']:.3g}"] if example["r"] is not None else []
        values += [f"advantage {example['advantage']:+.2f}"] if example["advantage"] is not None else []
        lines += [", ".join(values), ""]
        parts = [("question", example["question"]), ("note before", example["before"]), ("note", example["note"])]
        parts += [("no observation held", example["detail"])] if example["detail"] else []
        lines += fenced([f"{name}: {text}" for name, text in parts if text is not None])
    return "\n".join(lines) + "\n"


def fenced(texts: Sequence[str]) -> list[str]:
    """A code block with a fence longer than any run of backticks in it."""
    lines = [printable(line) for text in texts for line in text.split("\n")]
    longest = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return [fence + "text", *lines, fence]


def _counts(report: Mapping[str, Any]) -> str:
    rollouts = report["rollouts"]
    of = counted(rollouts["groups"], "question")
    return f"{counted(rollouts['rollouts'], 'rollout')} of {of}, {counted(rollouts['notes'], 'note')}"


def _sentence(check: Mapping[str, Any]) -> str:
    return check["meaning"] if check["change"] is None else f"{check['meaning']}. Change: {check['change']}"
