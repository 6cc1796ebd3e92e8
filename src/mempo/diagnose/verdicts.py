"""From measures to verdicts. `look` means "look at this", not "this is wrong"."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mempo.diagnose.checks import CHECKS, Advice, Check, Report
from mempo.evaluate.grid import number

OK, LOOK, UNKNOWN = "ok", "look", "unknown"
MIN_COUNT = 8
_ASSIGNMENT = re.compile(r"\b((?:[a-z_]+\.)+[a-z_]+)=([a-z0-9_]+)")


@dataclass(frozen=True)
class Verdict:
    """How a check came out. Where `value` is None or rests on too little, the verdict is `unknown`. `change`: what to
    change, for `look` only."""

    key: str
    label: str
    value: float | None
    shown: str
    healthy: str
    verdict: str
    meaning: str
    change: str | None


def verdicts(report: Report, settings: Mapping[str, Any]) -> list[Verdict]:
    """Every check that matters in this run, in the order of `CHECKS`. `settings`: those of the run by dotted key; what
    is set already is not advised."""
    return [_verdict(check, report, settings) for check in CHECKS if check.matters(report)]


def advised(advice: Advice, settings: Mapping[str, Any]) -> str:
    """Why, and the remedies that are left."""
    why, *remedies = advice
    left = [remedy for remedy in remedies if not _is_set(remedy, settings)]
    return f"{why}: {'; '.join(left)}." if left else f"{why}; everything that usually helps is set already."


def _is_set(remedy: str, settings: Mapping[str, Any]) -> bool:
    named = _ASSIGNMENT.search(remedy)
    return named is not None and named[1] in settings and _text(settings[named[1]]) == named[2]


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def at(report: Report, path: str) -> Any:
    """The value at a dotted path; None where the path ends early."""
    value: Any = report
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _verdict(check: Check, report: Report, settings: Mapping[str, Any]) -> Verdict:
    value = at(report, check.path)
    count = at(report, check.count) if check.count else None
    advice = None
    if value is not None and check.low is not None and value < check.low:
        advice = check.below
    if value is not None and check.high is not None and value > check.high:
        advice = check.above
    if value is None or (count is not None and count < MIN_COUNT):
        verdict = UNKNOWN
    else:
        verdict = LOOK if advice and not check.excused(report) else OK
    shown = number(value, check.form)
    if check.trend:
        start, end = at(report, f"trend.{check.trend}.start"), at(report, f"trend.{check.trend}.end")
        shown = f"{number(start, '{:.3g}')} → {number(end, '{:.3g}')}"
    change = advised(advice, settings) if advice and verdict == LOOK else None
    return Verdict(check.key, check.label, value, shown, check.range, verdict, check.meaning, change)
