"""The whole diagnosis as plain data: what `diagnosis.json` holds, and what table, text and figures are drawn from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from mempo.config.base import leaves
from mempo.config.rewards import MemorySettings
from mempo.config.train import CreditSettings
from mempo.diagnose.alarms import verdicts
from mempo.diagnose.by_turn import by_turn, drift
from mempo.diagnose.control import ControlNote, control, control_by_turn
from mempo.diagnose.correlation import NotePoint, correlations, note_points
from mempo.diagnose.credit_share import credit_share, gold_kept
from mempo.diagnose.curves import curves, note_curve, trend
from mempo.diagnose.examples import examples
from mempo.diagnose.faithfulness import faith_of, faithfulness, faithfulness_by_turn
from mempo.diagnose.numbers import finite, mean, ratio
from mempo.diagnose.records import Batch
from mempo.diagnose.repetition import repetition, repetition_by_turn

TRENDS = ("score", "turns", "note_tokens")
SHOWN_SETTINGS = (
    "baseline",
    "full_policy",
    "threshold",
    "reward",
    "pool",
    "min_pool",
    "normalize_std",
    "weight",
    "gate",
)


@dataclass(frozen=True)
class Material:
    """What a diagnosis is made of. `history`: `(step, batch)` of the saved steps that curves of notes are drawn from;
    `control`: P in four contexts and how many notes were left out, None when no model was asked. `memory_signal`:
    whether the run scored notes and paid for them."""

    run: str
    batch: Batch
    metrics: Sequence[Mapping[str, Any]]
    memory: MemorySettings
    credit: CreditSettings
    history: Sequence[tuple[int, Batch]] = ()
    control: tuple[Sequence[ControlNote], int] | None = None
    remarks: Sequence[str] = ()
    memory_signal: bool = True
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The run's settings by dotted key, as far as they are known."""


def build_report(material: Material) -> dict[str, Any]:
    """Plain data without NaN: what is not known is None."""
    batch, memory = material.batch, material.memory
    turns = by_turn(batch, memory.min_pool)
    faith = faith_of(batch)
    kept = gold_kept(batch)
    points = note_points(batch, faith)
    over_steps = curves(material.metrics)
    lengths = [len(rollout.turns) for rollout in batch.rollouts]
    report: dict[str, Any] = {
        "run": material.run,
        "rollouts": {
            "file": batch.name,
            "groups": len(batch.groups),
            "rollouts": len(batch.rollouts),
            "notes": len(batch.noted),
            "errors_left_out": batch.errors,
            "credit": batch.credit,
        },
        "settings": {
            **{name: getattr(memory, name) for name in SHOWN_SETTINGS},
            "memory_signal": material.memory_signal,
        },
        "remarks": list(material.remarks),
        "score": mean(rollout.score for rollout in batch.rollouts),
        "em": mean(rollout.em for rollout in batch.rollouts),
        "format_ok": mean(None if r.format_ok is None else float(r.format_ok) for r in batch.rollouts),
        "turns": {
            "mean": mean(lengths),
            "rollouts_by_turns": {str(n): count for n, count in sorted(Counter(lengths).items())},
        },
        "trend": {name: _trend(over_steps.get(name, [])) for name in TRENDS},
        "by_turn": [asdict(turn) for turn in turns],
        "drift": {
            "question": drift(turns, lambda t: t.credit_question),
            "turn": drift(turns, lambda t: t.credit_turn),
            "given": drift(turns, lambda t: t.credit),
        },
        "credit": asdict(credit_share(batch)),
        "gold_kept": {**asdict(kept), "silent_share": ratio(sum(kept.silent.values()), kept.notes)},
        "correlation": asdict(correlations(points)),
        "faithfulness": {**asdict(faithfulness(faith)), "by_turn": faithfulness_by_turn(faith)},
        "repetition": {**asdict(repetition(batch)), "by_turn": [asdict(t) for t in repetition_by_turn(batch)]},
        "control": None,
        "curves": over_steps,
        "note_curves": [note_curve(step, saved) for step, saved in material.history],
        "examples": [asdict(example) for example in examples(batch, faith)],
    }
    if material.control is not None:
        notes, left_out = material.control
        report["control"] = {**asdict(control(notes, left_out)), "by_turn": control_by_turn(notes)}
    settings = {**material.settings, **dict(leaves(memory.model_dump(mode="json"), "memory."))}
    report["checks"] = [asdict(verdict) for verdict in verdicts(report, settings)]
    report["points"] = [_point(point) for point in points]
    return finite(report)


def _trend(values: Sequence[float | None]) -> dict[str, float | None]:
    found = trend(values)
    known = found.start is not None and found.end is not None
    return {
        "start": found.start,
        "end": found.end,
        "ratio": found.ratio,
        "gain": (found.end or 0.0) - (found.start or 0.0) if known and len(values) > 1 else None,
    }


def _point(point: NotePoint) -> dict[str, Any]:
    return {**asdict(point), "pool": f"{point.pool[0]}/{point.pool[1] + 1}"}
