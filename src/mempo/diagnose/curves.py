"""What changed over training: measures of every step, and measures of texts at the steps whose rollouts were saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mempo.diagnose.faithfulness import faith_of, faithfulness
from mempo.diagnose.numbers import mean
from mempo.diagnose.records import Batch
from mempo.diagnose.repetition import repetition

MEASURES = (
    "score",
    "em",
    "format_ok",
    "turns",
    "searches",
    "note_tokens",
    "memory/p_mem_raw",
    "memory/r",
    "credit/memory_share",
    "credit/memory_only_groups",
    "credit/zero_spread_groups",
    "update/entropy",
)
_PLAIN = (int, float)


@dataclass(frozen=True)
class Trend:
    """Means over the first and the last tenth of the steps (at least one step each)."""

    start: float | None
    end: float | None

    @property
    def ratio(self) -> float | None:
        return self.end / self.start if self.start and self.end is not None else None


def curves(metrics: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
    """`{measure: [steps]}` of the RL stage, with `step`; None where a step did not report it."""
    lines = [line for line in metrics if line.get("stage") == "rl"]
    found = {name: [_number(line.get(name)) for line in lines] for name in MEASURES}
    kept = {name: values for name, values in found.items() if any(v is not None for v in values)}
    return {"step": [_number(line.get("step")) for line in lines], **kept}


def trend(values: Sequence[float | None]) -> Trend:
    share = max(len(values) // 10, 1)
    return Trend(mean(values[:share]), mean(values[-share:]) if values else None)


def note_curve(step: int, batch: Batch) -> dict[str, float | int | None]:
    """Measures of the texts of one saved step."""
    texts, faith = repetition(batch), faithfulness(faith_of(batch))
    return {
        "step": step,
        "novelty": texts.novelty,
        "copies": texts.copies,
        "templates": texts.templates,
        "distinct_notes": texts.distinct_notes,
        "distinct_queries": texts.distinct_queries,
        "compression_across": texts.compression_across,
        "unheld": faith.unheld,
        "gold_kept": faith.gold_kept,
        "gold_lost": faith.gold_lost,
    }


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, _PLAIN) and not isinstance(value, bool) else None
