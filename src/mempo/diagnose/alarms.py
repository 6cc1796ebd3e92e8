"""From measures to verdicts. `look` means "look at this", not "this is wrong"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mempo.diagnose.checks import CHECKS, MIN_COUNT, Check, Report

OK, LOOK, UNKNOWN = "ok", "look", "unknown"


@dataclass(frozen=True)
class Verdict:
    """A check as it came out. Where `value` is None or rests on too little the verdict is `unknown`. `change`: what to
    change, for `look` only."""

    key: str
    label: str
    value: float | None
    shown: str
    healthy: str
    verdict: str
    meaning: str
    change: str | None


def verdicts(report: Report) -> list[Verdict]:
    """Every check that matters in this run, in the order of `CHECKS`."""
    return [_verdict(check, report) for check in CHECKS if check.matters(report)]


def at(report: Report, path: str) -> Any:
    """The value at a dotted path; None where the path ends early."""
    value: Any = report
    for part in path.split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(part)
    return value


def number(value: float | None, form: str) -> str:
    """A dash for what is not known; no minus before a zero."""
    if value is None:
        return "–"
    shown = form.format(value)
    return form.format(0.0) if shown == form.format(-0.0) else shown


def _verdict(check: Check, report: Report) -> Verdict:
    value = at(report, check.path)
    count = at(report, check.count) if check.count else None
    outside = value is not None and (
        (check.low is not None and value < check.low) or (check.high is not None and value > check.high)
    )
    if value is None or (count is not None and count < MIN_COUNT):
        verdict = UNKNOWN
    else:
        verdict = LOOK if outside and not check.excused(report) else OK
    shown = number(value, check.form)
    if check.trend:
        start, end = at(report, f"trend.{check.trend}.start"), at(report, f"trend.{check.trend}.end")
        shown = f"{number(start, '{:.3g}')} → {number(end, '{:.3g}')}"
    change = check.change if verdict == LOOK else None
    return Verdict(check.key, check.label, value, shown, check.range, verdict, check.meaning, change)
