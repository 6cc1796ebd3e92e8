"""Records written by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from mempo.config.rewards import MemorySettings
from mempo.config.train import AdvantageSettings
from mempo.diagnose.records import Batch, NoteSignal, RolloutRecord, TurnRecord
from mempo.diagnose.report import Material, build_report

MEANS = (-0.10, -0.22, -0.33)
QUESTION = "capital of France; capital of Japan"
GOLD = (("Paris",), ("Tokyo", "東京"))


def turn(
    note: str | None = None, said: str | None = None, r: float | None = None, query: str | None = None, **more: Any
) -> TurnRecord:
    """A turn; `r` or any field of a signal makes it a scored note. The index comes with the rollout."""
    names = {"advantage", "p_mem", "p_baseline", "p_mem_raw", "gold_tokens", "kept_mem", "kept_baseline", "reason"}
    signal = {name: more.pop(name) for name in list(more) if name in names}
    tokens = {"note_tokens": len(note.split()) if note else 0, "note_slots": 2 if note else 0, "generated_tokens": 5}
    scored = NoteSignal(r, **signal) if r is not None or signal else None
    return TurnRecord(0, note, query=query, observation=said, signal=scored, **{**tokens, **more})


def rollout(*turns: TurnRecord, question: str = QUESTION, gold: Any = GOLD, **more: Any) -> RolloutRecord:
    numbered = tuple(replace(made, index=i) for i, made in enumerate(turns))
    return RolloutRecord(more.pop("question_id", question), question, gold, numbered, **more)


def batch(*groups: list[RolloutRecord], **more: Any) -> Batch:
    return Batch(more.pop("name", "step-1"), tuple(map(tuple, groups)), **more)


def report(made: Batch, **more: Any) -> dict[str, Any]:
    defaults: dict[str, Any] = {
        "run": "run",
        "metrics": [],
        "memory": MemorySettings(),
        "advantages": AdvantageSettings(),
    }
    return build_report(Material(batch=made, **{**defaults, **more}))


def published() -> Batch:
    """16 rollouts, turns 2 to 4, the mean rewards `MEANS` by turn, and a standard deviation of 0.13 overall."""
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(16, 3))
    noise -= noise.mean(axis=0)  # the means by turn are exact
    means = np.array(MEANS)
    between = 16 * float(((means - means.mean()) ** 2).sum())
    within = 47 * 0.13**2 - between
    values = means + noise * np.sqrt(within / float((noise**2).sum()))
    noted = [[turn("Paris", r=float(r), advantage=0.0) for r in row] for row in values]
    return batch([rollout(turn(), *turns, score=1.0) for turns in noted])
