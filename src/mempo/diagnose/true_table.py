"""The table of true advantages, for the terminal and as a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

HEADER = ("signal", "Pearson", "Spearman", "with state", "right", "wrong", "paid", "paid, alike")
LEGEND = (
    "Pearson, Spearman: correlation of what the signal pays for a note with the note's worth [95 % interval over "
    "states]. with state: with the value of the state, luck of what came before the note. right, wrong: share of signs "
    "among notes that made a difference. paid; paid, alike: mean size of the signal for notes that made a difference, "
    "and for those that made none."
)


def facts(report: Mapping[str, Any]) -> list[str]:
    """What was measured, in sentences."""
    of = "score" if report["worth"] == "score" else "share of objectives answered"
    found = [
        f"{report['notes']} notes in {report['states']} states, of {report['found']} that {report['rollouts']} "
        f"rollouts passed; {report['siblings']} more notes were sampled there, and {report['continuations']} rollouts "
        "went on from all of them",
        f"worth: mean {of} of the rollouts that go on from a note, less that of the other notes of its state; "
        f"{report['differing']} notes made a difference (worth beyond two standard errors), {report['alike']} made "
        "none (within one)",
    ]
    if report["ceiling"] is None:
        found.append(
            "no note made any difference to the rollouts after it, so no signal can be judged: "
            + (
                "the outcome is silent here; --worth share counts objectives one by one"
                if report["worth"] == "score"
                else "try an earlier policy, or more --continuations"
            )
        )
    else:
        found.append(
            "worths are measured with error: a perfect signal would have a correlation of about "
            f"{report['ceiling']:.2f}"
        )
    return found


def rows(report: Mapping[str, Any]) -> list[list[str]]:
    return [
        [
            signal["name"],
            *(_interval(signal[name]) for name in ("pearson", "spearman")),
            _number(signal["state_value"]["value"], "+.2f"),
            _number(signal["right_signs"]["value"], ".0%"),
            _number(signal["wrong_signs"]["value"], ".0%"),
            _number(signal["paid_differs"], ".2f"),
            _number(signal["paid_alike"], ".2f"),
        ]
        for signal in report["signals"]
    ]


def on_screen(report: Mapping[str, Any]) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for i, name in enumerate(HEADER):
        table.add_column(escape(name), justify="right" if i else "left")
    for row in rows(report):
        table.add_row(*map(escape, row))
    return Group(*map(Text, facts(report)), table, Text(LEGEND))


def page(name: str, report: Mapping[str, Any]) -> str:
    """The page `true-advantage.md`."""
    lines = [f"# True advantage of notes: {name}, policy {report['policy']}", ""]
    lines += [f"{text[0].upper()}{text[1:]}.\n" for text in facts(report)]
    lines += ["| " + " | ".join(HEADER) + " |", "|---|" + "---:|" * (len(HEADER) - 1)]
    lines += ["| " + " | ".join(row) + " |" for row in rows(report)]
    return "\n".join([*lines, "", LEGEND]) + "\n"


def _interval(found: Mapping[str, float | None]) -> str:
    text = _number(found["value"], "+.2f")
    if found["low"] is None or found["high"] is None:
        return text
    return f"{text} [{found['low']:+.2f}, {found['high']:+.2f}]"


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
