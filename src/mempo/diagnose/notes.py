"""One row for every note: what the run recorded about it, and what its text shows beside the rollout's other texts.

Whether a note says what the tools said is measured twice. By facts (`words.facts_of`), which needs no gold: facts that
no observation so far contains, and facts of the previous note that are gone. By gold, which is exact: of the objectives
whose answer an observation has shown so far, how many the note contains, and how many an earlier note contained and
this one does not. Objectives whose answer is part of the question (yes/no questions, choices) are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from mempo.diagnose.numbers import ratio
from mempo.diagnose.records import Batch, NoteSignal, RolloutRecord, TurnRecord
from mempo.diagnose.words import facts_of, seen_in, squeezed, words_of
from mempo.rewards.answer_match import says_one_of
from mempo.train.pools import memory_advantages

_NOTHING = NoteSignal(None)


@dataclass(frozen=True)
class NoteText:
    """What a note's text shows. Facts as text; gold as counts of objectives.

    `unheld` ⊆ `facts`: in no observation so far. `dropped` ⊆ `held_before`: facts that the previous note had from
    observations, gone now. `gold_seen`: objectives answered by the observations so far; `gold_kept`: of these, those
    that the note contains; `gold_noted_before`: of these, those that an earlier note contained; `gold_lost`: of those,
    the ones gone now. `gold_unseen`: in the note although no observation has shown them. `novelty`: of the note's
    distinct words, the share that the previous note does not have; `copy`: 1 if it equals the previous note; both None
    without one.
    """

    facts: tuple[str, ...]
    unheld: tuple[str, ...]
    held_before: tuple[str, ...]
    dropped: tuple[str, ...]
    gold_seen: int
    gold_kept: int
    gold_noted_before: int
    gold_lost: int
    gold_unseen: int
    novelty: float | None
    copy: float | None


@dataclass(frozen=True)
class Note:
    """A note of the second turn or later; `group` is its place in the batch, `turn` counts from 1.

    `advantage_question`, `advantage_turn`: its reward standardised within the question, and within the question's turn
    (the question again where the turn has fewer than `min_pool`). `template`: 1 if it occurs word for word in a rollout
    of another question, None where there is no other question.
    """

    group: int
    turn: int
    rollout: RolloutRecord
    record: TurnRecord
    text: NoteText
    advantage_question: float | None
    advantage_turn: float | None
    template: float | None

    @property
    def signal(self) -> NoteSignal:
        return self.record.signal or _NOTHING

    @property
    def completeness(self) -> float | None:
        """The share of the answer seen so far that the note contains; None before any was seen."""
        return ratio(self.text.gold_kept, self.text.gold_seen)


def notes_of(batch: Batch, min_pool: int = 4) -> list[Note]:
    """A row for each of `batch.noted`, in its order."""
    owners = owners_of((squeezed(turn.note or ""), rollout.question) for rollout, turn in batch.noted)
    found = []
    for number, group in enumerate(batch.groups):
        rewards = [_rewards(rollout) for rollout in group]
        in_question, in_turn = (_standardized(rewards, pool, min_pool) for pool in ("question", "turn"))
        for i, rollout in enumerate(group):
            for turn in rollout.noted:
                shared = float(len(owners[squeezed(turn.note or "")]) > 1) if len(batch.groups) > 1 else None
                text = text_of(rollout, turn)
                pooled = in_question[i].get(turn.index), in_turn[i].get(turn.index)
                found.append(Note(number, turn.index + 1, rollout, turn, text, *pooled, shared))
    return found


def text_of(rollout: RolloutRecord, turn: TurnRecord) -> NoteText:
    """Raises nothing: a turn without a note is an empty note."""
    note, before = turn.note or "", rollout.note_before(turn)
    said = rollout.observations_before(turn)
    seen, now = seen_in(said), seen_in([note])
    facts = facts_of(note, rollout.question)
    held_before: tuple[str, ...] = ()
    novelty = copy = None
    if before is not None:
        held_before = tuple(f for f in facts_of(before.note or "", rollout.question) if seen.holds(f))
        words, old = ({word.text for word in words_of(text)} for text in (note, before.note or ""))
        novelty = ratio(len(words - old), len(words))
        copy = float(squeezed(note) == squeezed(before.note or ""))
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
    return NoteText(
        facts=facts,
        unheld=tuple(fact for fact in facts if not seen.holds(fact)),
        held_before=held_before,
        dropped=tuple(fact for fact in held_before if not now.holds(fact)),
        gold_seen=gold_seen,
        gold_kept=gold_kept,
        gold_noted_before=noted_before,
        gold_lost=lost,
        gold_unseen=unseen,
        novelty=novelty,
        copy=copy,
    )


def askable(rollout: RolloutRecord) -> list[tuple[str, ...]]:
    """Objectives whose answer is not part of the question."""
    return [aliases for aliases in rollout.objectives if not says_one_of(rollout.question, aliases)]


def owners_of(pairs: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    """`(text, question)` to the questions in whose rollouts each text occurs."""
    found: dict[str, set[str]] = {}
    for text, question in pairs:
        found.setdefault(text, set()).add(question)
    return found


def _rewards(rollout: RolloutRecord) -> dict[int, float]:
    return {t.index: t.signal.r for t in rollout.noted if t.signal is not None and t.signal.r is not None}


def _standardized(rewards: list[dict[int, float]], pool: str, min_pool: int) -> list[Mapping[int, float]]:
    """Rewards `[rollouts]{turn: r}` of one question as advantages of weight 1."""
    choice: Literal["question", "turn"] = "turn" if pool == "turn" else "question"
    return list(memory_advantages(rewards, pool=choice, min_pool=min_pool).by_rollout)
