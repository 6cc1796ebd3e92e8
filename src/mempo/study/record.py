"""What a finished run leaves behind: one line of results.jsonl."""

from __future__ import annotations

import json
import platform
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import mempo
from mempo.rewards.answer_match import answers_given
from mempo.rewards.rollout_metrics import counts, mean
from mempo.rollout.question import as_gold, objectives_of
from mempo.storage.files import append_line, read_lines
from mempo.storage.run_folder import RunFolder
from mempo.study.code import code_digest
from mempo.study.plan import Task

Record = dict[str, Any]
RESULTS = "results.jsonl"
CURVES = (
    *("score", "em", "mean_em", "format_ok", "memory/p_mem", "note_tokens", "turns", "update/entropy"),
    *("advantages/zero_spread_groups", "advantages/memory_share"),
)
EVALUATED = ("em", "f1", "mean_em", "format_ok", "note_tokens", "peak_context_tokens", "total_tokens", "turns")
MOST_POINTS = 200
"""Longer curves are thinned to so many means of neighbouring steps."""


def record_of(task: Task, seconds: Mapping[str, float] | None, resumed: bool) -> Record:
    """The line of a finished run, read from its folder. `seconds` `{"cpu", "wall"}` of the process that made it; None,
    or `resumed`: it was made by several, and some of the time is not known."""
    folder = task.folder
    name = "start" if task.arm is None else "final"
    record: Record = {
        "key": task.key,
        "start": task.start,
        "arm": task.arm,
        "seed": task.seed,
        "rl_seed": task.rl_seed,
        "folder": folder.name,
        "settings": list(task.settings),
        "evaluation": evaluation_of(folder, name),
        "seconds": None if seconds is None else {kind: round(value, 1) for kind, value in seconds.items()},
        "resumed": resumed,
        "versions": versions(),
    }
    if task.arm is not None:
        record["curve"] = curve_of(RunFolder(folder).metrics())
        record["objectives_right"] = objectives_right(folder)
    for check in ("probe-check", "start-check"):
        if (folder / f"{check}.json").is_file():
            record[check] = json.loads((folder / f"{check}.json").read_text("utf-8"))
    return record


def versions() -> dict[str, str]:
    return {
        "mempo": mempo.__version__,
        "code": code_digest(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def evaluation_of(folder: Path, name: str) -> dict[str, dict[str, Any]]:
    """`{objectives: metrics}` of an evaluation; `given` is the share of objectives answered at whatever place."""
    file = folder / f"evaluation-{name}.json"
    metrics: dict[str, dict[str, Any]] = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    given = _given(folder / "rollouts" / f"evaluation-{name}.jsonl")
    return {
        k: {
            **{key: found[key] for key in ("questions", "scored_questions") if key in found},
            **{key: found.get(key) for key in EVALUATED},
            "p_mem": found.get("memory/p_mem_raw"),
            "given": given.get(int(k)),
        }
        for k, found in metrics.items()
    }


def curve_of(metrics: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """`{metric: [points]}` of the steps of RL, `step` among them, those that the run has."""
    lines = [line for line in metrics if line["stage"] == "rl"]
    size = max(1, -(-len(lines) // MOST_POINTS))
    parts = [lines[first : first + size] for first in range(0, len(lines), size)]
    curve: dict[str, list[Any]] = {"step": [part[-1]["step"] for part in parts]}
    for name in CURVES:
        values = [mean([line.get(name) for line in part]) for part in parts]
        if any(value is not None for value in values):
            curve[name] = [None if value is None else round(value, 5) for value in values]
    return curve


def objectives_right(folder: Path) -> dict[str, float]:
    """`{step: share of objectives answered at whatever place}` of the RL steps whose rollouts were saved."""
    steps = sorted(int(file.stem.removeprefix("step-")) for file in (folder / "rollouts").glob("step-*.jsonl"))
    found = {}
    for step in steps:
        values = _given_by_line(folder / "rollouts" / f"step-{step}.jsonl")
        if values:
            found[str(step)] = round(statistics.fmean(value for _, value in values), 5)
    return found


def _given(file: Path) -> dict[int, float]:
    """`{objectives: share answered}` of the rollouts in a file."""
    found = _given_by_line(file)
    return {n: round(statistics.fmean(value for k, value in found if k == n), 5) for n in {k for k, _ in found}}


def _given_by_line(file: Path) -> list[tuple[int, float]]:
    lines = [line for line in read_lines(file) if counts(line) and line.get("gold") is not None]
    golds = [objectives_of(as_gold(line["gold"])) for line in lines]
    return [(len(gold), answers_given(line["answer"], gold)) for line, gold in zip(lines, golds, strict=True)]


def read_records(out: Path) -> dict[str, Record]:
    """Finished runs by key."""
    return {record["key"]: record for record in read_lines(out / RESULTS)}


def add_record(out: Path, record: Record) -> None:
    append_line(out / RESULTS, record)
