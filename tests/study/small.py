"""A study file of small runs, and tasks and records that no run has made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from mempo.config import resolve
from mempo.study.plan import Task
from mempo.study.record import Record
from tests.train.small import SMALL

ARMS = {"outcome": ["rl.memory_signal=false"], "both": []}


def study_file(folder: Path, **parts: Any) -> str:
    """A study of two arms from one start with one seed; `parts` take the place of its keys."""
    content = {"base": "quickstart", "set": [*SMALL, "sft.demos=6", "rl.steps=2", "rl.save_every=1"], "arms": ARMS}
    file = folder / "small.yaml"
    file.write_text(yaml.safe_dump({**content, **parts}, sort_keys=False), encoding="utf-8")
    return str(file)


RESOLVED = resolve(None, ["data.environment=atlas"])


def a_task(
    arm: str | None, seed: int, start: str = "plain", rl_seed: int | None = None, after: str | None = None
) -> Task:
    key = f"{start} {arm} {seed} {rl_seed}"
    rl = None if arm is None else seed if rl_seed is None else rl_seed
    return Task(
        key, start, arm, seed, rl, RESOLVED, after=None if arm is None else after or f"{start} None {seed} None"
    )


def a_record(em: dict[str, float | None], cpu_s: float = 10.0, **more: Any) -> Record:
    return {
        "arm": "a",
        "start": "plain",
        "evaluation": {k: {"em": value} for k, value in em.items()},
        "curve": {"step": [1, 2]},
        "objectives_right": {},
        "seconds": {"cpu": cpu_s, "wall": cpu_s},
        "resumed": False,
        **more,
    }
