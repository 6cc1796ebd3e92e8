"""The same metrics for parts of the questions: by the data source, type or level that their rows named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mempo.evaluate.compare import Entry, Report, compare
from mempo.evaluate.metrics import by_objectives, summarise
from mempo.rollout.question import Question

KEYS = ("data_source", "type", "level")
"""What rows of public files say of their questions."""
MOST_VALUES = 20
"""A key with more of them tells questions apart, not kinds."""
SHOWN = ("questions", "scored_questions", "rollouts", "errors", "unscored", "em", "f1", "score")


def groups_of(question: Question) -> dict[str, str]:
    """What a rollout's line keeps of its question's row; composed questions know their source alone."""
    found = {key: question.meta.get(key) for key in KEYS}
    return {key: str(value)[:80] for key, value in found.items() if isinstance(value, str | int) and value != ""}


def values_of(lines: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """The values of every key by which the lines can be taken apart: there are at least two, and every line says one
    of them."""
    told = [groups if isinstance(groups := line.get("groups"), dict) else {} for line in lines]
    found = {}
    for key in KEYS:
        values = sorted({str(groups[key]) for groups in told if key in groups})
        if 2 <= len(values) <= MOST_VALUES and all(key in groups for groups in told):
            found[key] = values
    return found


def breakdowns(entries: Sequence[Entry], more: Sequence[str] = (), seed: int = 0) -> dict[str, Report]:
    """`{key: table}` with a row for every agent and value, `AGENT [VALUE]`, agents side by side; without pairs."""
    reports = {}
    for key, values in values_of([line for entry in entries for line in entry.lines]).items():
        parts = [
            Entry(f"{entry.label} [{value}]", lines)
            for value in values
            for entry in entries
            if (lines := _with_value(entry.lines, key, value))
        ]
        reports[key] = compare(parts, more, seed, pairs=False)
    return reports


def metrics_by_objectives(
    lines: Sequence[Mapping[str, Any]], more: Sequence[str] = (), samples: int | None = None
) -> dict[int, dict[str, Any]]:
    """The metrics of an agent by number of objectives, as files hold them: `summarise`, and those of parts of the
    questions under `by`."""
    found = {}
    for k, chosen in by_objectives(lines).items():
        parts = breakdown_metrics(chosen)
        found[k] = summarise(chosen, more, samples) | ({"by": parts} if parts else {})
    return found


def breakdown_metrics(lines: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, dict[str, float | None]]]:
    """`{key: {value: metrics}}` of one agent, for files."""
    found = {}
    for key, values in values_of(lines).items():
        parts = {value: summarise(_with_value(lines, key, value)) for value in values}
        found[key] = {value: {name: part[name] for name in SHOWN} for value, part in parts.items()}
    return found


def _with_value(lines: Sequence[Mapping[str, Any]], key: str, value: str) -> list[Mapping[str, Any]]:
    return [line for line in lines if str(line["groups"][key]) == value]
