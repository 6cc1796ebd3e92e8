"""Notes and queries that repeat: copies of the last note, one note for all questions, rollouts that are all alike.

Two texts are the same when they agree after NFKC, case folding and squeezing white space.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mempo.diagnose.numbers import mean, ratio
from mempo.diagnose.records import Batch, RolloutRecord, TurnRecord
from mempo.diagnose.words import squeezed, words_of


@dataclass(frozen=True)
class TurnRepetition:
    """Notes of one turn (from 1). `novelty`: of a note's distinct words, the share that the note before did not hold;
    `copies`: the share equal to the note before; `templates`: the share that also stands, word for word, in a rollout
    of another question. The first two are over notes with a note before them."""

    turn: int
    notes: int
    novelty: float | None
    copies: float | None
    templates: float | None


@dataclass(frozen=True)
class Repetition:
    """The same over all turns, and collapse.

    `distinct_notes`, `distinct_queries`: how different the rollouts of a group are, (distinct texts - 1) / (texts - 1):
    0 all the same, 1 all different (the last note of each, the queries of each as a list), averaged over groups of two
    or more; `shared_queries`: the share of queries
    that another question's rollouts ask too, of those questions that do not hold the same part.
    `compression`: bytes of all notes over their bytes compressed. `compression_across`: the same with one note a
    question (the last of its first rollout with notes), over that of the texts of those questions: 1 where notes are as
    different as what is asked, whatever the number and the vocabulary of the questions.
    """

    notes: int
    novelty: float | None
    copies: float | None
    templates: float | None
    distinct_notes: float | None
    distinct_queries: float | None
    shared_queries: float | None
    compression: float | None
    compression_across: float | None


def repetition_by_turn(batch: Batch) -> list[TurnRepetition]:
    owners = _owners((squeezed(turn.note or ""), rollout.question) for rollout, turn in batch.noted)
    turns = sorted({turn.index for _, turn in batch.noted})
    return [_of_turn(batch, index, owners) for index in turns]


def _of_turn(batch: Batch, index: int, owners: dict[str, set[str]]) -> TurnRepetition:
    there = [(rollout, turn) for rollout, turn in batch.noted if turn.index == index]
    novelty, copies, templates = _shares(batch, there, owners)
    return TurnRepetition(index + 1, len(there), novelty, copies, templates)


def repetition(batch: Batch) -> Repetition:
    owners = _owners((squeezed(turn.note or ""), rollout.question) for rollout, turn in batch.noted)
    novelty, copies, templates = _shares(batch, batch.noted, owners)
    asked = [(squeezed(query), rollout.question) for rollout in batch.rollouts for query in _queries(rollout)]
    askers = _owners(asked)
    lasts = [[_last_note(rollout) for rollout in group] for group in batch.groups]
    return Repetition(
        notes=len(batch.noted),
        novelty=novelty,
        copies=copies,
        templates=templates,
        distinct_notes=mean(_distinct([note for note in group if note is not None]) for group in lasts),
        distinct_queries=mean(
            _distinct([tuple(map(squeezed, _queries(rollout))) for rollout in group if _queries(rollout)])
            for group in batch.groups
        ),
        shared_queries=_shared_queries(asked, askers) if len(batch.groups) > 1 else None,
        compression=compression_ratio(turn.note or "" for _, turn in batch.noted),
        compression_across=_compression_across(batch),
    )


def compression_ratio(texts: Iterable[str]) -> float | None:
    """Bytes over zlib bytes of the texts, a line each; plain English prose of this size comes out near 2."""
    data = "\n".join(texts).encode("utf-8", "replace")
    return len(data) / len(zlib.compress(data, 9)) if data else None


def _compression_across(batch: Batch) -> float | None:
    pairs = {}
    for group in batch.groups:
        notes = [note for rollout in group if (note := _last_note(rollout)) is not None]
        if notes:
            pairs[group[0].question] = notes[0]
    of_notes, of_questions = compression_ratio(pairs.values()), compression_ratio(pairs)
    if of_notes is None or of_questions is None or len(pairs) < 2:
        return None
    return of_notes / of_questions


def _shares(
    batch: Batch, noted: Sequence[tuple[RolloutRecord, TurnRecord]], owners: dict[str, set[str]]
) -> tuple[float | None, float | None, float | None]:
    novelty: list[float | None] = []
    copies: list[float] = []
    for rollout, turn in noted:
        before = rollout.note_before(turn)
        if before is None:
            continue
        copies.append(float(squeezed(turn.note or "") == squeezed(before.note or "")))
        now = {word.text for word in words_of(turn.note or "")}
        novelty.append(ratio(len(now - {word.text for word in words_of(before.note or "")}), len(now)))
    shared = [float(len(owners[squeezed(turn.note or "")]) > 1) for _, turn in noted]
    return mean(novelty), mean(copies), mean(shared) if len(batch.groups) > 1 else None


def _shared_queries(asked: Sequence[tuple[str, str]], askers: dict[str, set[str]]) -> float | None:
    """Two questions that both contain the words of a query may both ask it; that is no collapse."""
    shared = {
        (query, question): any(query not in squeezed(other) for other in askers[query] if other != question)
        for query, question in set(asked)
    }
    return mean(float(shared[pair]) for pair in asked)


def _owners(pairs: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    """Text → the questions in whose rollouts it stands."""
    found: dict[str, set[str]] = {}
    for text, question in pairs:
        found.setdefault(text, set()).add(question)
    return found


def _queries(rollout: RolloutRecord) -> list[str]:
    return [turn.query for turn in rollout.turns if turn.query is not None]


def _last_note(rollout: RolloutRecord) -> str | None:
    notes = [turn.note for turn in rollout.noted]
    return squeezed(notes[-1] or "") if notes else None


def _distinct(values: Sequence[object]) -> float | None:
    """0: all the same; 1: all different."""
    return (len(set(values)) - 1) / (len(values) - 1) if len(values) > 1 else None
