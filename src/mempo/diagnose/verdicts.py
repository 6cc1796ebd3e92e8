"""From measures to verdicts. `look` means "look at this", not "this is wrong"."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from mempo.diagnose.checks import CHECKS, Advice, Check, Report

OK, LOOK, UNKNOWN = "ok", "look", "unknown"
MIN_COUNT = 8
_ASSIGNMENT = re.compile(r"\b((?:[a-z_]+\.)+[a-z_]+)=([a-z0-9_]+)")


Verdict = dict[str, Any]
"""How a check came out, as the report holds it: `key`, `label` and `meaning` of the check; its `value`, how it is
`shown`, and what is `healthy`; the `verdict`, `unknown` where the value is None or rests on too little; `change`: what
to change, for `look` only."""


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


def number(value: float | None, form: str) -> str:
    """A dash for what is not known; no minus before a zero."""
    if value is None:
        return "–"
    shown = form.format(value)
    return form.format(0.0) if shown == form.format(-0.0) else shown


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
    about = {"key": check.key, "label": check.label, "meaning": check.meaning}
    return {**about, "value": value, "shown": shown, "healthy": check.range, "verdict": verdict, "change": change}
