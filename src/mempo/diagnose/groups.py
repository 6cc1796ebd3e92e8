"""Groups of rollouts: how different they are, and whether the outcome or notes earn them advantages.

Two texts are the same when they agree after NFKC, case folding and squeezing white space.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Sequence

from mempo.diagnose.notes import owners_of
from mempo.diagnose.numbers import mean, ratio
from mempo.diagnose.records import Batch, RolloutRecord
from mempo.diagnose.words import squeezed

Metrics = dict[str, float | None]
KINDS = {(True, True): "both", (True, False): "outcome_only", (False, True): "memory_only", (False, False): "neither"}
"""(the outcome earns advantages, notes do) → name of the share of such groups."""


def variety(batch: Batch) -> Metrics:
    """How much rollouts and questions differ in their texts.

    `distinct_notes`, `distinct_queries`: (distinct texts − 1) / (texts − 1) within a group, 0 all the same, 1 all
    different (the last note of each rollout, the queries of each as a list), averaged over groups of two or more.
    `shared_queries`: the share of queries that another question's rollouts ask too, if that question does not contain
    the query. `compression`: bytes of all notes over their bytes compressed. `compression_across`: the same with one
    note a question (the last of its first rollout with notes), over that of the texts of these questions: 1 where notes
    are as different as the questions, however many questions there are and whatever their vocabulary.
    """
    groups = batch.groups
    asked = [(squeezed(query), rollout.question) for rollout in batch.rollouts for query in _queries(rollout)]
    return {
        "distinct_notes": mean(
            _distinct([note for rollout in group if (note := _last_note(rollout)) is not None]) for group in groups
        ),
        "distinct_queries": mean(
            _distinct([tuple(map(squeezed, queries)) for rollout in group if (queries := _queries(rollout))])
            for group in groups
        ),
        "shared_queries": _shared(asked) if len(groups) > 1 else None,
        "compression": compression_ratio(turn.note or "" for _, turn in batch.noted),
        "compression_across": _compression_across(batch),
    }


def advantage_shares(batch: Batch) -> Metrics:
    """A dense standardised signal can drown a sparse one: where all rollouts of a group fail, the outcome says nothing,
    and notes still get advantages of the usual size.

    `memory_share`: the part of Σ |A| over generated tokens, outcome and memory apart, that notes get. `outcome_abs`,
    `memory_abs`: mean |A| of a rollout, and of a note that has one. Then the shares of groups in `KINDS`. All None
    where advantages are not known.
    """
    names = ("memory_share", "outcome_abs", "memory_abs", *KINDS.values())
    if batch.advantages == "none":
        return dict.fromkeys(names)
    of_outcome = of_memory = 0.0
    for rollout in batch.rollouts:
        of_outcome += abs(rollout.advantage or 0.0) * sum(turn.generated_tokens for turn in rollout.turns)
        of_memory += sum(abs(a) * slots for a, slots in _note_advantages(rollout))
    kinds = Counter(
        (any(rollout.advantage for rollout in group), any(a for rollout in group for a, _ in _note_advantages(rollout)))
        for group in batch.groups
    )
    return {
        "memory_share": ratio(of_memory, of_outcome + of_memory),
        "outcome_abs": mean(None if r.advantage is None else abs(r.advantage) for r in batch.rollouts),
        "memory_abs": mean(abs(a) for rollout in batch.rollouts for a, _ in _note_advantages(rollout)),
        **{name: ratio(kinds[kind], len(batch.groups)) for kind, name in KINDS.items()},
    }


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


def _shared(asked: Sequence[tuple[str, str]]) -> float | None:
    """Two questions that both contain the words of a query may both ask it; that is no collapse."""
    askers = owners_of(asked)
    shared = {
        (query, question): any(query not in squeezed(other) for other in askers[query] if other != question)
        for query, question in set(asked)
    }
    return mean(float(shared[pair]) for pair in asked)


def _queries(rollout: RolloutRecord) -> list[str]:
    return [turn.query for turn in rollout.turns if turn.query is not None]


def _last_note(rollout: RolloutRecord) -> str | None:
    notes = [turn.note for turn in rollout.noted]
    return squeezed(notes[-1] or "") if notes else None


def _distinct(values: Sequence[object]) -> float | None:
    """0: all the same; 1: all different."""
    return (len(set(values)) - 1) / (len(values) - 1) if len(values) > 1 else None


def _note_advantages(rollout: RolloutRecord) -> list[tuple[float, int]]:
    """`(advantage, tokens that carry it)` of the notes that have one."""
    return [
        (turn.signal.advantage, turn.note_slots)
        for turn in rollout.noted
        if turn.signal is not None and turn.signal.advantage is not None
    ]
