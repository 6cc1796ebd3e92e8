"""Do notes say what the tools said, and keep it?

By facts (`words.facts_of`), which need no gold: facts in a note that no observation so far held; facts that the note
before held, rightly, and this one does not. By gold, which is exact: of the objectives whose answer some observation
has shown by now, how many the note holds, and how many an earlier note held that this one has lost again. Objectives
whose answer stands in the question itself (yes/no questions, choices) are left out of the gold measures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from mempo.diagnose.numbers import mean, ratio
from mempo.diagnose.records import Batch, RolloutRecord, TurnRecord
from mempo.diagnose.words import facts_of, seen_in
from mempo.rewards.answer_match import says_one_of


@dataclass(frozen=True)
class NoteFaith:
    """One note; `turn` counts from 1. Facts as text; gold as counts of objectives.

    `unheld` ⊆ `facts`: in no observation so far. `dropped` ⊆ `held_before`: facts of the note before that observations
    held, gone now. `gold_seen`: objectives answered by the observations so far; `gold_kept`: of them, those that the
    note holds; `gold_noted_before`: of them, those that an earlier note held; `gold_lost`: of these, those gone now.
    `gold_unseen`: held by the note although no observation has shown them.
    """

    turn: int
    facts: tuple[str, ...]
    unheld: tuple[str, ...]
    held_before: tuple[str, ...]
    dropped: tuple[str, ...]
    gold_seen: int
    gold_kept: int
    gold_noted_before: int
    gold_lost: int
    gold_unseen: int

    @property
    def complete(self) -> bool | None:
        """Everything seen of the answer is in the note; None when nothing was seen yet."""
        return self.gold_kept == self.gold_seen if self.gold_seen else None

    @property
    def completeness(self) -> float | None:
        return ratio(self.gold_kept, self.gold_seen)


@dataclass(frozen=True)
class Faithfulness:
    """Shares over many notes: of facts not held by any observation, of facts dropped; of gold kept, lost again, and
    noted unseen; of notes without any fact. None: there is nothing to take a share of. `facts`, `gold_seen`,
    `gold_noted_before`: how many there were."""

    notes: int
    facts: int
    gold_seen: int
    gold_noted_before: int
    facts_per_note: float | None
    unheld: float | None
    dropped: float | None
    gold_kept: float | None
    gold_lost: float | None
    gold_unseen: float | None
    factless: float | None


def note_faith(rollout: RolloutRecord, turn: TurnRecord) -> NoteFaith:
    """Raises nothing: a turn without a note is an empty note."""
    note = turn.note or ""
    said = rollout.observations_before(turn)
    seen = seen_in(said)
    facts = facts_of(note, rollout.question)
    before = rollout.note_before(turn)
    held_before: tuple[str, ...] = ()
    if before is not None:
        held_before = tuple(f for f in facts_of(before.note or "", rollout.question) if seen.holds(f))
    now = seen_in([note])
    earlier = [other.note for other in rollout.turns[: turn.index] if other.note is not None]
    gold_seen = gold_kept = noted_before = lost = unseen = 0
    for aliases in askable(rollout):
        is_kept = says_one_of(note, aliases)
        if not any(says_one_of(text, aliases) for text in said):
            unseen += is_kept
            continue
        was_noted = any(says_one_of(text, aliases) for text in earlier)
        gold_seen += 1
        gold_kept += is_kept
        noted_before += was_noted
        lost += was_noted and not is_kept
    return NoteFaith(
        turn=turn.index + 1,
        facts=facts,
        unheld=tuple(fact for fact in facts if not seen.holds(fact)),
        held_before=held_before,
        dropped=tuple(fact for fact in held_before if not now.holds(fact)),
        gold_seen=gold_seen,
        gold_kept=gold_kept,
        gold_noted_before=noted_before,
        gold_lost=lost,
        gold_unseen=unseen,
    )


def askable(rollout: RolloutRecord) -> list[tuple[str, ...]]:
    """Objectives whose answer does not stand in the question."""
    return [aliases for aliases in rollout.objectives if not says_one_of(rollout.question, aliases)]


def faith_of(batch: Batch) -> list[NoteFaith]:
    """One for each of `batch.noted`, in its order."""
    return [note_faith(rollout, turn) for rollout, turn in batch.noted]


def faithfulness(notes: Sequence[NoteFaith]) -> Faithfulness:
    def share(part: str, whole: str) -> float | None:
        return ratio(_count(notes, part), _count(notes, whole))

    noted_gold = _count(notes, "gold_kept") + _count(notes, "gold_unseen")
    return Faithfulness(
        notes=len(notes),
        facts=_count(notes, "facts"),
        gold_seen=_count(notes, "gold_seen"),
        gold_noted_before=_count(notes, "gold_noted_before"),
        facts_per_note=mean(len(note.facts) for note in notes),
        unheld=share("unheld", "facts"),
        dropped=share("dropped", "held_before"),
        gold_kept=share("gold_kept", "gold_seen"),
        gold_lost=share("gold_lost", "gold_noted_before"),
        gold_unseen=ratio(_count(notes, "gold_unseen"), noted_gold),
        factless=mean(float(not note.facts) for note in notes),
    )


def faithfulness_by_turn(notes: Sequence[NoteFaith]) -> list[dict[str, object]]:
    """`Faithfulness` of the notes of each turn, with the turn."""
    turns = sorted({note.turn for note in notes})
    return [{"turn": turn, **asdict(faithfulness([n for n in notes if n.turn == turn]))} for turn in turns]


def _count(notes: Sequence[NoteFaith], name: str) -> int:
    values = [getattr(note, name) for note in notes]
    return sum(len(value) if isinstance(value, tuple) else value for value in values)
