"""The whole diagnosis as plain data: what `diagnosis.json` holds, and what tables and figures are made from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mempo.config.base import leaves
from mempo.config.rewards import MemorySettings
from mempo.config.train import AdvantageSettings
from mempo.diagnose.control import ControlNote, control, control_by_turn
from mempo.diagnose.examples import examples
from mempo.diagnose.groups import advantage_shares, variety
from mempo.diagnose.notes import Note, notes_of
from mempo.diagnose.numbers import finite, mean
from mempo.diagnose.records import Batch
from mempo.diagnose.summary import by_turn, correlations, drift, gold_tokens, summary
from mempo.diagnose.verdicts import verdicts

TRENDS = ("score", "turns", "note_tokens")
SETTINGS = ("baseline", "full_policy", "threshold", "reward", "pool", "min_pool", "normalize_std", "weight", "gate")
NOTE_CURVES = ("novelty", "copies", "templates", "unheld", "gold_kept", "gold_lost")
CURVES = (
    *("score", "em", "format_ok", "turns", "searches", "note_tokens", "memory/p_mem_raw", "memory/r"),
    *("advantages/memory_share", "advantages/memory_only_groups", "advantages/zero_spread_groups", "update/entropy"),
)
"""Metrics of RL steps that are drawn."""


@dataclass(frozen=True)
class Material:
    """What a diagnosis is made from. `history`: `(step, batch)` of the saved steps that curves of notes are drawn from;
    `control`: P in four contexts and how many notes were left out, None when no model was asked. `memory_signal`:
    whether the run scored notes and paid for them. `settings`: the run's by dotted key, as far as they are known."""

    run: str
    batch: Batch
    metrics: Sequence[Mapping[str, Any]]
    memory: MemorySettings
    advantages: AdvantageSettings
    history: Sequence[tuple[int, Batch]] = ()
    control: tuple[Sequence[ControlNote], int] | None = None
    warnings: Sequence[str] = ()
    memory_signal: bool = True
    settings: Mapping[str, Any] = field(default_factory=dict)


def build_report(material: Material) -> dict[str, Any]:
    """Plain data without NaN: what is not known is None."""
    batch, memory = material.batch, material.memory
    notes = notes_of(batch, memory.min_pool)
    over_steps = curves(material.metrics)
    lengths = [len(rollout.turns) for rollout in batch.rollouts]
    asked, left_out = material.control or ((), 0)
    now = control_by_turn(asked)
    turns = by_turn(batch, notes)
    report: dict[str, Any] = {
        "run": material.run,
        "rollouts": {
            "file": batch.name,
            "groups": len(batch.groups),
            "rollouts": len(batch.rollouts),
            "notes": len(batch.noted),
            "errors_left_out": batch.errors,
            "advantages": batch.advantages,
        },
        "settings": {name: getattr(memory, name) for name in SETTINGS} | {"memory_signal": material.memory_signal},
        "warnings": list(material.warnings),
        "score": mean(rollout.score for rollout in batch.rollouts),
        "em": mean(rollout.em for rollout in batch.rollouts),
        "format_ok": mean(None if r.format_ok is None else float(r.format_ok) for r in batch.rollouts),
        "turns": {
            "mean": mean(lengths),
            "rollouts_by_turns": {str(n): count for n, count in sorted(Counter(lengths).items())},
        },
        "trend": {name: trend(over_steps.get(name, [])) for name in TRENDS},
        "notes": summary(notes),
        "by_turn": [turn | now.get(turn["turn"], {}) for turn in turns],
        "drift": {
            name: drift(turns, column)
            for name, column in (
                ("question", "advantage_question"),
                ("turn", "advantage_turn"),
                ("given", "advantage"),
            )
        },
        "advantages": advantage_shares(batch),
        "gold_tokens": gold_tokens(notes),
        "correlation": correlations(notes),
        "variety": variety(batch),
        "control": None if material.control is None else control(asked, left_out),
        "curves": over_steps,
        "note_curves": [_note_curve(step, saved) for step, saved in material.history],
        "examples": examples(notes),
    }
    settings = {**material.settings, **dict(leaves(memory.model_dump(mode="json"), "memory."))}
    report["checks"] = verdicts(report, settings)
    report["points"] = [_point(note) for note in notes if note.signal.r is not None]
    return finite(report)


def curves(metrics: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
    """`{metric: [steps]}` of the RL stage, with `step`; None where a step did not report it."""
    lines = [line for line in metrics if line.get("stage") == "rl"]
    found = {name: [_number(line.get(name)) for line in lines] for name in CURVES}
    kept = {name: values for name, values in found.items() if any(v is not None for v in values)}
    return {"step": [_number(line.get("step")) for line in lines], **kept}


def trend(values: Sequence[float | None]) -> dict[str, float | None]:
    """Means over the first and the last tenth of the steps (at least one step each); `gain` needs two steps."""
    share = max(len(values) // 10, 1)
    start, end = mean(values[:share]), mean(values[-share:])
    return {
        "start": start,
        "end": end,
        "ratio": end / start if start and end is not None else None,
        "gain": None if start is None or end is None or len(values) < 2 else end - start,
    }


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _note_curve(step: int, batch: Batch) -> dict[str, float | int | None]:
    """Measures of the texts of one saved step."""
    notes = summary(notes_of(batch))
    return {"step": step, **{name: notes[name] for name in NOTE_CURVES}, **variety(batch)}


def _point(note: Note) -> dict[str, Any]:
    """What r is compared with, note by note."""
    return {
        "pool": f"{note.group}/{note.turn}",
        "r": note.signal.r,
        "advantage": note.signal.advantage,
        "score": note.rollout.score,
        "note_tokens": note.record.note_tokens,
        "completeness": note.completeness,
    }
