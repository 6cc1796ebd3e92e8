"""What r goes with: the rollout's outcome, the note's length, and how complete the note is.

Everything is compared within its pool (the same question and the same turn), so that neither how hard a question is nor
how late it is can make a correlation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mempo.diagnose.faithfulness import NoteFaith
from mempo.diagnose.numbers import correlation_within, mean, ratio
from mempo.diagnose.records import Batch


@dataclass(frozen=True)
class NotePoint:
    """One note with a reward; `pool` is (group, turn), and the rest is what r may go with."""

    pool: tuple[int, int]
    r: float
    advantage: float | None
    score: float | None
    note_tokens: int
    completeness: float | None


@dataclass(frozen=True)
class Correlations:
    """Correlations in [-1, 1] within pools, None where one side does not vary; `*_notes`: how many notes they rest on.

    `length_alike`: r with length among notes of the pool that are equally complete, since a complete note is longer.
    `complete_punished`: of the notes that hold all of the answer seen so far, in pools where others hold less, the
    share with negative credit. `alike_share`: the part of sum |A_memory| given in pools whose notes all hold equally
    much of it, where only wording is left to pay.
    """

    outcome: float | None
    outcome_notes: int
    length: float | None
    length_notes: int
    length_alike: float | None
    length_alike_notes: int
    completeness: float | None
    completeness_notes: int
    complete_punished: float | None
    alike_share: float | None


def note_points(batch: Batch, faith: Sequence[NoteFaith]) -> list[NotePoint]:
    """Notes with a reward. `faith` belongs to `batch.noted`."""
    by_note = iter(faith)
    points = []
    for number, group in enumerate(batch.groups):
        for rollout in group:
            for turn in rollout.noted:
                known, signal = next(by_note), turn.signal
                if signal is not None and signal.r is not None:
                    points.append(
                        NotePoint(
                            pool=(number, turn.index),
                            r=signal.r,
                            advantage=signal.advantage,
                            score=rollout.score,
                            note_tokens=turn.note_tokens,
                            completeness=known.completeness,
                        )
                    )
    return points


def correlations(points: Sequence[NotePoint]) -> Correlations:
    pools = [point.pool for point in points]
    rewards = [point.r for point in points]
    outcome, outcome_notes = correlation_within(pools, rewards, [point.score for point in points])
    lengths = [float(point.note_tokens) for point in points]
    length, length_notes = correlation_within(pools, rewards, lengths)
    alike, alike_notes = correlation_within([(p.pool, p.completeness) for p in points], rewards, lengths)
    complete, complete_notes = correlation_within(pools, rewards, [point.completeness for point in points])
    levels: dict[tuple[int, int], set[float]] = {}
    for point in points:
        if point.completeness is not None:
            levels.setdefault(point.pool, set()).add(point.completeness)
    paid = [(abs(p.advantage), len(levels[p.pool])) for p in points if p.advantage is not None and p.pool in levels]
    return Correlations(
        outcome=outcome,
        outcome_notes=outcome_notes,
        length=length,
        length_notes=length_notes,
        length_alike=alike,
        length_alike_notes=alike_notes,
        completeness=complete,
        completeness_notes=complete_notes,
        complete_punished=mean(
            float(point.advantage < 0)
            for point in points
            if point.completeness == 1.0 and point.advantage is not None and len(levels[point.pool]) > 1
        ),
        alike_share=ratio(sum(a for a, kinds in paid if kinds == 1), sum(a for a, _ in paid)),
    )
