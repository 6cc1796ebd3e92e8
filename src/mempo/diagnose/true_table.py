"""The table of true advantages, for the terminal and as a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group
from rich.text import Text

from mempo.evaluate.grid import Grid, printable

HEADER = ("signal", "Pearson", "Spearman", "with state", "right", "wrong", "paid", "paid, alike")
LEGEND = (
    "Pearson, Spearman: correlation of what the signal pays for a note with the note's worth [95 % interval over "
    "states]. with state: with the value of the state, which is luck in what came before the note. right, wrong: share "
    "of signs among notes that made a difference. paid; paid, alike: mean size of the signal for notes that made a "
    "difference, and for those that made none."
)


def screen(report: Mapping[str, Any]) -> Group:
    return Group(*(Text(printable(line)) for line in measured(report)), table(report), Text(LEGEND))


def page(name: str, report: Mapping[str, Any]) -> str:
    """The page `true-advantage.md`."""
    lines = [f"# True advantage of notes: {name}, policy {report['policy']}", ""]
    lines += [f"{text[0].upper()}{text[1:]}.\n" for text in measured(report)]
    return "\n".join([*lines, table(report).markdown(), LEGEND]) + "\n"


def table(report: Mapping[str, Any]) -> Grid:
    rows = [
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
    return Grid(HEADER, rows, words=("signal",))


def measured(report: Mapping[str, Any]) -> list[str]:
    """What was measured, in sentences."""
    of = "score" if report["worth"] == "score" else "share of objectives answered"
    found = [
        f"{report['notes']} notes in {report['states']} states, of {report['found']} that {report['rollouts']} "
        f"rollouts reached; {report['siblings']} more notes were sampled there, and {report['continuations']} rollouts "
        "continued from all of them",
        f"worth: mean {of} of the rollouts that continue from a note, less that of the other notes of its state; "
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


def _interval(found: Mapping[str, float | None]) -> str:
    text = _number(found["value"], "+.2f")
    if found["low"] is None or found["high"] is None:
        return text
    return f"{text} [{found['low']:+.2f}, {found['high']:+.2f}]"


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
