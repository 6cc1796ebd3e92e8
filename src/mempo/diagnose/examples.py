"""A few notes to read: numbers say where to look, texts say what is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mempo.diagnose.notes import Note

MAX_CHARS = 600

_KINDS: dict[str, Callable[[Note], object]] = {
    "facts that no observation held": lambda note: note.text.unheld,
    "an answer noted and lost again": lambda note: note.text.gold_lost,
    "a copy of the note before": lambda note: note.text.copy,
}


def examples(notes: Sequence[Note]) -> list[dict[str, Any]]:
    """At most one note of each kind, `kind` first: the highest and the lowest advantage (r where there is none), a fact
    from nowhere, an answer lost again, a copy."""
    found = []
    for name in ("advantage", "r"):
        values = ((getattr(note.signal, name), i) for i, note in enumerate(notes))
        ranked = [(value, i) for value, i in values if value is not None]
        if ranked:
            found.append(_example(f"highest {name}", notes[max(ranked)[1]]))
            found.append(_example(f"lowest {name}", notes[min(ranked)[1]]))
            break
    for kind, is_one in _KINDS.items():
        first = next((note for note in notes if is_one(note)), None)
        if first is not None:
            found.append(_example(kind, first, ", ".join(first.text.unheld) if kind.startswith("facts") else ""))
    return found


def _example(kind: str, note: Note, detail: str = "") -> dict[str, Any]:
    before = note.rollout.note_before(note.record)
    return {
        "kind": kind,
        "question": _short(note.rollout.question),
        "turn": note.turn,
        "note": _short(note.record.note or ""),
        "before": _short(before.note or "") if before is not None else None,
        "r": note.signal.r,
        "advantage": note.signal.advantage,
        "detail": _short(detail),
    }


def _short(text: str) -> str:
    return text if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS]}…"
