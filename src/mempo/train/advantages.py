"""Advantages: from the rewards of a step to one list of advantages per training row.

    A_outcome = (score - mean of the group) / (std of the group + eps)      on every generated token of the rollout
    A_memory  = (r - mean of the pool) / (std of the pool + eps)            on the tokens of the note, tags included
    A         = A_outcome + weight * A_memory, where the gate is open

(MemPO, arXiv 2603.00680; std with n - 1, as in verl.) A group is the rollouts of one question, and each rollout counts
once in it, however many turns or training rows it has. Rollouts without a score do not count: they are not among those
of an `AdvantageBatch`. The pools of notes are in `pools.py`, functions of the user's own in `own_advantages.py`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mempo.config.rewards import MemorySettings
from mempo.config.train import CreditSettings
from mempo.measures import mean
from mempo.question import Question
from mempo.train.pools import NoteRewards, finite, memory_advantages, standardized
from mempo.trajectory import Row, Trajectory, Turn

# --- what goes in, what comes out ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class AdvantageBatch:
    """The rollouts of a step that count, group by group. All lists are `[rollouts]`.

    `step` counts from 1. `places`: where each rollout stands among all of the step, those that do not count included.
    `groups`: rollouts with the same number are compared with each other; they are of one question. `notes`
    `[rollouts]{turn: r}`: the memory reward of each note, turns counted from 0; None: it gives no signal. What a policy
    saw before a turn is `trajectories[i].turns[t].prompt_ids`.

    Raises:
        ValueError: the lists differ in length, a score is not a finite number, or a group holds two questions; the
            message names both.
    """

    step: int
    questions: Sequence[Question]
    trajectories: Sequence[Trajectory]
    scores: Sequence[float]
    notes: Sequence[NoteRewards]
    groups: Sequence[int]
    places: Sequence[int]

    def __post_init__(self) -> None:
        lists = (self.questions, self.trajectories, self.scores, self.notes, self.groups, self.places)
        if len({len(values) for values in lists}) > 1:
            raise ValueError(f"an advantage batch with lists of {', '.join(str(len(v)) for v in lists)} rollouts")
        finite(self.scores, "score of rollout")
        for members in self.members:
            refuse_two_questions([self.trajectories[i] for i in members], [self.places[i] for i in members])

    @property
    def members(self) -> list[list[int]]:
        """`[groups][rollouts]`: indices into the lists."""
        found: dict[int, list[int]] = {}
        for i, group in enumerate(self.groups):
            found.setdefault(group, []).append(i)
        return list(found.values())


AdvantageFunction = Callable[[AdvantageBatch], tuple[list[float], list[dict[int, float]]]]
"""Takes the place of the formulas: outcome advantages `[rollouts]` and memory advantages `[rollouts]{turn: A}`."""


@dataclass(frozen=True)
class Advantages:
    """Of every rollout of a batch, `[rollouts]`: `outcome`, and `memory` `{turn: A}`, notes that earn none left out."""

    outcome: list[float]
    memory: list[dict[int, float]]
    metrics: dict[str, float | None]

    def of_row(self, rollout: int, trajectory: Trajectory, row: Row) -> list[float]:
        """One advantage per token of a training row of rollout `rollout`, `[tokens]`; see `row_advantages`."""
        return row_advantages(trajectory, row, self.outcome[rollout], self.memory[rollout])


def batch_advantages(
    batch: AdvantageBatch, credit: CreditSettings, memory: MemorySettings, own: AdvantageFunction | None = None
) -> Advantages:
    """The advantages of a step; `own` takes the place of the formulas.

    Raises:
        UserError: `own` failed, or returned what are no advantages.
    """
    members = batch.members
    groups = [
        group_advantages([batch.scores[i] for i in group], [batch.notes[i] for i in group], credit, memory)
        for group in members
    ]
    if own is None:
        outcome, by_turn = [0.0] * len(batch.scores), [dict[int, float]() for _ in batch.scores]
        for group, made in zip(members, groups, strict=True):
            for i, value, notes in zip(group, made.outcome, made.memory, strict=True):
                outcome[i], by_turn[i] = value, notes
    else:
        outcome, by_turn = own(batch)
    return Advantages(outcome, by_turn, _metrics(batch, outcome, by_turn, groups, own is not None))


def refuse_two_questions(trajectories: Sequence[Trajectory], places: Sequence[int]) -> None:
    """A group holds the rollouts of one question.

    Raises:
        ValueError: it does not; the message names both.
    """
    for place, trajectory in zip(places, trajectories, strict=True):
        if trajectory.question_id != trajectories[0].question_id:
            raise ValueError(
                f"rollouts {places[0]} and {place} are in one group, but belong to the questions "
                f"{trajectories[0].question_id!r} and {trajectory.question_id!r}; a group holds the rollouts of one "
                f"question: is its size {len(places)} the number of rollouts per question, and are they in order?"
            )


# --- outcome -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OutcomeAdvantages:
    """`values` `[rollouts]`. `mean`, `std` are None when they do not exist. `zero_spread`: all scores are equal, so
    every advantage is 0."""

    values: list[float]
    mean: float | None
    std: float | None
    zero_spread: bool


def outcome_advantages(scores: Sequence[float], settings: CreditSettings) -> OutcomeAdvantages:
    """Outcome advantages of one group of scores `[rollouts]`.

    A group of one has nothing to compare it with: the advantage is 0, and a warning says so (once, by Python's default
    filter).

    Raises:
        ValueError: a score is not a finite number.
    """
    known = list(finite(scores, "score of rollout").values())
    if len(known) == 1:
        warnings.warn(
            "a group has a single scored rollout: its outcome advantage is 0, so nothing is learnt from it; "
            "use at least 2 rollouts per question, and look at the error counts if you do",
            stacklevel=2,
        )
    values = np.array(known)
    return OutcomeAdvantages(
        values=standardized(known, settings.normalize_std),
        mean=float(values.mean()) if len(known) else None,
        std=float(values.std(ddof=1)) if len(known) > 1 else None,
        zero_spread=len(set(known)) == 1,
    )


# --- one group -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GroupAdvantages:
    """Of the rollouts of one question: `outcome` `[rollouts]`, `memory` `[rollouts]{turn: A}`. Counts of notes:
    `fallbacks` and `no_signal` as in `MemoryAdvantages`, `gated`: kept back by the gate."""

    outcome: list[float]
    memory: list[dict[int, float]]
    zero_spread: bool
    fallbacks: int = 0
    no_signal: int = 0
    gated: int = 0


def group_advantages(
    scores: Sequence[float], notes: Sequence[NoteRewards], credit: CreditSettings, memory: MemorySettings
) -> GroupAdvantages:
    """From the scores `[rollouts]` and note rewards `[rollouts]{turn: r}` of one question to its advantages."""
    outcome = outcome_advantages(scores, credit)
    made = memory_advantages(
        notes,
        pool=memory.pool,
        min_pool=memory.min_pool,
        normalize_std=memory.normalize_std,
        weight=memory.weight,
        small_pool=memory.small_pool,
    )
    kept = gate_memory(made.by_rollout, outcome, memory.gate)
    return GroupAdvantages(
        outcome=outcome.values,
        memory=kept,
        zero_spread=outcome.zero_spread,
        fallbacks=made.fallbacks,
        no_signal=made.no_signal,
        gated=made.given - sum(map(len, kept)),
    )


Gate = Literal["always", "when_group_varies", "when_not_negative"]


def gate_memory(
    memory: Sequence[Mapping[int, float]], outcome: OutcomeAdvantages, gate: Gate
) -> list[dict[int, float]]:
    """Memory advantages `[rollouts]{turn: A}` of one question without those that the gate keeps back.

    `when_group_varies`: none in a group whose scores are all equal, where a dense signal would be the only one.
    `when_not_negative`: only in rollouts with an outcome advantage >= 0 (the condition that the original's code holds
    commented out).
    """
    opened = [True] * len(memory)
    if gate == "when_group_varies":
        opened = [not outcome.zero_spread] * len(memory)
    elif gate == "when_not_negative":
        opened = [advantage >= 0 for advantage in outcome.values]
    return [dict(by_turn) if is_open else {} for by_turn, is_open in zip(memory, opened, strict=True)]


# --- tokens --------------------------------------------------------------------------------------------------------


def row_advantages(trajectory: Trajectory, row: Row, outcome: float, memory: Mapping[int, float]) -> list[float]:
    """The advantage of every token of a training row, `[tokens]`; 0 outside the generated ones.

    `outcome` goes to every generated token, `memory[turn]` on top of it to those of the turn's note. Forced tokens are
    the policy's words but not its doing: they have no advantage, also inside a note. A note without tokens of its own
    (one token holds all of it and more) has nothing to write its advantage on.

    Raises:
        ValueError: `memory` names a turn that does not exist or holds no closed note.
    """
    with_note = {turn.index for turn in trajectory.turns if turn.note_ids is not None}
    if not with_note.issuperset(memory):
        raise ValueError(
            f"question {trajectory.question_id}, rollout {trajectory.rollout}: memory advantages for turns "
            f"{sorted(memory)}, but closed notes only in turns {sorted(with_note)}"
        )
    values = [0.0] * len(row.ids)
    for segment in row.segments:
        values[segment.start : segment.stop] = [float(outcome)] * (segment.stop - segment.start)
        if segment.turn in memory:
            for slot in note_slots(trajectory.turns[segment.turn]):
                values[segment.start + slot] += memory[segment.turn]
    return values


def note_slots(turn: Turn) -> range:
    """Which of the turn's generated tokens are its note's."""
    if turn.note_span is None:
        return range(0)
    # Spans count own tokens = forced + generated; advantages count generated ones only.
    start, stop = (max(0, edge - len(turn.forced_ids)) for edge in turn.note_span)
    return range(start, stop)


# --- what is reported ----------------------------------------------------------------------------------------------


def _metrics(
    batch: AdvantageBatch,
    outcome: Sequence[float],
    memory: Sequence[Mapping[int, float]],
    groups: Sequence[GroupAdvantages],
    is_own: bool,
) -> dict[str, float | None]:
    """`memory_share`: the part of sum |A| over generated tokens, each kind apart, that notes earn.
    `memory_only_groups`: the share of groups in which notes are all that is paid for."""
    of_outcome = of_memory = 0.0
    for trajectory, value, by_turn in zip(batch.trajectories, outcome, memory, strict=True):
        of_outcome += abs(value) * trajectory.generated_tokens
        of_memory += sum(abs(a) * len(note_slots(trajectory.turns[turn])) for turn, a in by_turn.items())
    total = of_outcome + of_memory
    memory_only = [
        not any(outcome[i] for i in group) and any(a for i in group for a in memory[i].values())
        for group in batch.members
    ]
    return {
        "credit/outcome_abs": mean(abs(value) for value in outcome),
        "credit/memory_abs": mean(abs(value) for by_turn in memory for value in by_turn.values()),
        "credit/memory_share": of_memory / total if total else None,
        "credit/memory_only_groups": mean(map(float, memory_only)),
        "credit/zero_spread_groups": mean(float(group.zero_spread) for group in groups),
        "credit/lone_groups": float(sum(len(group.outcome) == 1 for group in groups)),
        "credit/pool_fallbacks": None if is_own else float(sum(group.fallbacks for group in groups)),
        "credit/silent_notes": None if is_own else float(sum(group.no_signal for group in groups)),
        "credit/gated_notes": None if is_own else float(sum(group.gated for group in groups)),
    }
