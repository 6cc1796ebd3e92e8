"""Names in the files of earlier releases: metrics and notes are read under those of today, whichever wrote them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def metrics_today(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line of `metrics.jsonl`."""
    return {_metric(name): value for name, value in line.items()}


def note_today(note: Mapping[str, Any]) -> dict[str, Any]:
    """The reward of a note, as a rollout file holds it."""
    return {name.replace("_full", "_baseline"): value for name, value in note.items()}


def _metric(name: str) -> str:
    if name.startswith("credit/"):
        return name.replace("credit/", "advantages/", 1)
    return name.replace("p_full", "p_baseline")
