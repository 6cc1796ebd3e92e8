"""Which curves are drawn, under which question, and what is healthy; the ranges are those of docs/training.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mempo.view.folder import ViewedFolder
from mempo.view.rollouts import known

MAX_POINTS = 1500
"""Of longer curves every n-th step is drawn, counted back from the newest."""


@dataclass(frozen=True)
class Chart:
    """`metric` over the steps of `stage`. Healthy is from `low` to `high` (None: open). `per`: divided by another
    metric. `about`: what a healthy curve does, in words."""

    title: str
    metric: str
    about: str = ""
    low: float | None = None
    high: float | None = None
    stage: str = "rl"
    per: str | None = None


CHARTS: dict[str, tuple[Chart, ...]] = {
    "Does it learn?": (
        Chart("score", "score", "rises"),
        Chart("exact match", "em", "rises"),
        Chart("objectives right", "mean_em", "rises before exact match does"),
        Chart("format kept", "format_ok", "above 0.9", 0.9, 1.0),
        Chart("rollouts that answered", "stop/answered", "most of them", 0.8, 1.0, per="rollouts"),
        Chart("turns", "turns", "about one search per fact"),
        Chart("groups without spread", "advantages/zero_spread_groups", "below 0.8: others teach nothing", 0.0, 0.8),
    ),
    "Does it write better notes?": (
        Chart("P(answer | note)", "memory/p_mem_raw", "ranks notes; rises where notes grow complete"),
        Chart("memory reward r", "memory/r", "rises, or stays where P(baseline) rises with it"),
        Chart("gold tokens kept", "memory/gold_kept", "above 0.9 where there is a threshold", 0.9, 1.0),
        Chart("note tokens", "note_tokens", "settles; growing without end means that long notes are free"),
        Chart("notes that were lost", "advantages/lost_notes", "falls to 0"),
        Chart("share of the memory signal", "advantages/memory_share", "between 0 and 1: both signals speak"),
    ),
    "Is training healthy?": (
        Chart("SFT loss", "loss", "falls; jumps once where demonstrations join", stage="sft"),
        Chart("entropy", "update/entropy", "falls slowly; 0 is collapse"),
        Chart("gradient norm", "update/grad_norm", "finite, without spikes"),
        Chart("clipped tokens", "update/clip_fraction", "small", 0.0, 0.2),
        Chart("distance of the sampler", "update/k3_old", "near 0 with one update a step", 0.0, 0.01),
        Chart("distance from the start", "update/k3", "grows slowly"),
        Chart("sampler's log-prob gap", "sampler/logp_gap", "near 0", 0.0, 0.1),
        Chart("failed by infrastructure", "errors", "0", 0.0, 0.0),
        Chart("rollouts without a score", "unscored", "0", 0.0, 0.0),
        Chart("steps thrown away", "update/skipped", "0", 0.0, 0.0),
        Chart("peak context, tokens", "peak_context_tokens", "flat with notes as memory"),
        Chart("seconds for rollouts", "seconds/rollout", "flat"),
    ),
}


def curves(folders: Sequence[ViewedFolder]) -> dict[str, Any]:
    """Everything that is drawn, for the page's script: labels of runs, and sections of charts that have a value. A
    series is `{run, x [steps], y [steps]}`. Raises DamagedFile."""
    runs = [folder for folder in folders if not folder.is_evaluation]
    sections = []
    for question, charts in CHARTS.items():
        drawn = [made for chart in charts if (made := _chart(chart, runs))["series"]]
        if drawn:
            sections.append({"title": question, "charts": drawn})
    version = "/".join(folder.version() for folder in folders)
    return {"version": version, "runs": [folder.label for folder in runs], "sections": sections}


def _chart(chart: Chart, runs: Sequence[ViewedFolder]) -> dict[str, Any]:
    series = []
    for number, folder in enumerate(runs):
        points = [(step, y) for step, y in (_point(chart, line) for line in folder.metrics()) if y is not None]
        every = max(len(points) // MAX_POINTS, 1)
        points = points[(len(points) - 1) % every :: every]
        if points:
            series.append({"run": number, "x": [step for step, _ in points], "y": [y for _, y in points]})
    return {"title": chart.title, "about": chart.about, "low": chart.low, "high": chart.high, "series": series}


def _point(chart: Chart, line: dict[str, Any]) -> tuple[int, float | None]:
    value = known(line.get(chart.metric)) if line["stage"] == chart.stage else None
    if value is not None and chart.per is not None:
        whole = known(line.get(chart.per))
        value = value / whole if whole else None
    return line["step"], value
