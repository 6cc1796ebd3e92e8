"""A few notes to read: numbers say where to look, texts say what is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mempo.diagnose.faithfulness import NoteFaith
from mempo.diagnose.records import Batch, RolloutRecord, TurnRecord
from mempo.diagnose.words import squeezed

MAX_CHARS = 600


@dataclass(frozen=True)
class Example:
    """A note and why it was chosen; `turn` counts from 1."""

    kind: str
    question: str
    turn: int
    note: str
    before: str | None
    r: float | None
    advantage: float | None
    detail: str


Noted = tuple[RolloutRecord, TurnRecord, NoteFaith]


def examples(batch: Batch, faith: Sequence[NoteFaith]) -> list[Example]:
    """At most one of each kind: the highest and the lowest credit (r where there is none), a fact from nowhere, an
    answer lost again, a copy."""
    notes = [(rollout, turn, known) for (rollout, turn), known in zip(batch.noted, faith, strict=True)]
    found: list[Example] = []
    values = {"credit": [_advantage(note) for note in notes], "r": [_r(note) for note in notes]}
    for what, known in values.items():
        ranked = [(value, i) for i, value in enumerate(known) if value is not None]
        if ranked:
            found.append(_example(f"highest {what}", notes[max(ranked)[1]]))
            found.append(_example(f"lowest {what}", notes[min(ranked)[1]]))
            break
    kinds: list[tuple[str, Callable[[Noted], str]]] = [
        ("facts that no observation held", lambda note: ", ".join(note[2].unheld)),
        ("an answer noted and lost again", lambda note: "lost" if note[2].gold_lost else ""),
        ("a copy of the note before", _copied),
    ]
    for kind, detail in kinds:
        first = next((note for note in notes if detail(note)), None)
        if first is not None:
            found.append(_example(kind, first, detail(first) if kind.startswith("facts") else ""))
    return found


def _r(note: Noted) -> float | None:
    return note[1].signal.r if note[1].signal is not None else None


def _advantage(note: Noted) -> float | None:
    return note[1].signal.advantage if note[1].signal is not None else None


def _copied(note: Noted) -> str:
    before = note[0].note_before(note[1])
    return "copied" if before is not None and squeezed(before.note or "") == squeezed(note[1].note or "") else ""


def _example(kind: str, note: Noted, detail: str = "") -> Example:
    rollout, turn, _ = note
    before = rollout.note_before(turn)
    return Example(
        kind=kind,
        question=_short(rollout.question),
        turn=turn.index + 1,
        note=_short(turn.note or ""),
        before=_short(before.note or "") if before is not None else None,
        r=_r(note),
        advantage=turn.signal.advantage if turn.signal is not None else None,
        detail=_short(detail),
    )


def _short(text: str) -> str:
    return text if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS]}…"
