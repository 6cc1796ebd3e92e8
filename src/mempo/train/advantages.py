"""Advantages: from the rewards of a step to one list of advantages per training row.

    A_outcome = (score - mean of the group) / (std of the group + eps)      on every generated token of the rollout
    A_memory  = (r - mean of the pool) / (std of the pool + eps)            on the tokens of the note, tags included
    A         = A_outcome + weight * A_memory, where the gate is open

(MemPO, arXiv 2603.00680; std with n - 1, as in verl.) A group is the rollouts of one question, and each rollout counts
once in it, however many turns or training rows it has. Rollouts without a score do not count: they are not among those
of an `AdvantageBatch`. Notes are compared in `pools.py`; functions of the user's own are in `own_advantages.py`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from mempo.config.rewards import MemorySettings
from mempo.config.train import AdvantageSettings
from mempo.rewards.rollout_metrics import mean
from mempo.rollout.question import Question
from mempo.rollout.trajectory import Row, Trajectory, Turn
from mempo.train.fading import fade
from mempo.train.pools import MemoryAdvantages, NoteRewards, against, finite, memory_advantages

# --- what goes in, what comes out ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class AdvantageBatch:
    """The rollouts of a step that count, group by group. All lists are `[rollouts]`.

    `step` counts from 1. `places`: where each rollout stands among all of the step, those that do not count included.
    `groups`: rollouts with the same number are compared with each other; they are of one question. `notes`
    `[rollouts]{turn: r}`: the memory reward of each note, turns counted from 0; None: it gives no signal. `lost`
    `[rollouts]`: turns whose note should be there and is not, where `memory.lost_notes` looks for them; they have a
    reward of None. What a policy saw before a turn is `trajectories[i].turns[t].prompt_ids`.

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
    lost: Sequence[frozenset[int]] = ()

    def __post_init__(self) -> None:
        if not self.lost:
            object.__setattr__(self, "lost", [frozenset[int]()] * len(self.scores))
        lists = (self.questions, self.trajectories, self.scores, self.notes, self.groups, self.places, self.lost)
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
    """Of every rollout of a batch, `[rollouts]`: `outcome`, and `memory` `{turn: A}`, notes that earn none left out.

    `silence`: the share of silent groups of the last batches, this one included, which the next step is to be given.
    `lost`: turns whose memory advantage lies on the whole turn.
    """

    outcome: list[float]
    memory: list[dict[int, float]]
    metrics: dict[str, float | None]
    silence: tuple[float, ...] = ()
    lost: Sequence[Collection[int]] = ()

    def __post_init__(self) -> None:
        if not self.lost:
            object.__setattr__(self, "lost", [()] * len(self.outcome))

    def of_row(self, rollout: int, trajectory: Trajectory, row: Row) -> list[float]:
        """One advantage per token of a training row of rollout `rollout`, `[tokens]`; see `row_advantages`."""
        return row_advantages(trajectory, row, self.outcome[rollout], self.memory[rollout], self.lost[rollout])


def batch_advantages(
    batch: AdvantageBatch,
    advantages: AdvantageSettings,
    memory: MemorySettings,
    own: AdvantageFunction | None = None,
    silence: Sequence[float] = (),
) -> Advantages:
    """The advantages of a step; `own` takes the place of the formulas. `silence`: that of the step before.

    Raises:
        UserError: `own` failed, or returned what are no advantages.
    """
    members = batch.members
    silent = [len({batch.scores[i] for i in group}) == 1 for group in members]
    faded, silence = fade(silence, silent, memory.fade_batches)
    groups = [
        group_advantages(
            [batch.scores[i] for i in group],
            [batch.notes[i] for i in group],
            advantages,
            memory,
            lost=[batch.lost[i] for i in group],
            faded=faded,
        )
        for group in members
    ]
    if own is not None:
        outcome, by_turn = own(batch)
        made = Advantages(outcome, by_turn, {}, lost=batch.lost)
        return replace(made, metrics=_metrics(batch, made, groups, None))
    outcome, by_turn = [0.0] * len(batch.scores), [dict[int, float]() for _ in batch.scores]
    for group, found in zip(members, groups, strict=True):
        for n, i in enumerate(group):
            outcome[i], by_turn[i] = found.outcome[n], found.memory[n]
    made = Advantages(outcome, by_turn, {}, silence, batch.lost)
    return replace(made, metrics=_metrics(batch, made, groups, memory.weight * faded))


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


# --- one group -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GroupAdvantages:
    """Of the rollouts of one question: `outcome` `[rollouts]`, and `memory` `[rollouts]{turn: A}`, which is what the
    gate leaves of `ungated`."""

    outcome: list[float]
    memory: list[dict[int, float]]
    zero_spread: bool
    ungated: MemoryAdvantages


def group_advantages(
    scores: Sequence[float],
    notes: Sequence[NoteRewards],
    advantages: AdvantageSettings,
    memory: MemorySettings,
    lost: Sequence[Collection[int]] | None = None,
    faded: float = 1.0,
) -> GroupAdvantages:
    """From the scores `[rollouts]` and note rewards `[rollouts]{turn: r}` of one question to its advantages.

    `lost` `[rollouts]`: turns without the note that they should have. `faded`: a factor of the memory weight.
    """
    outcome, zero_spread = outcome_advantages(scores, advantages), len(set(scores)) == 1
    made = memory_advantages(
        notes,
        pool=memory.pool,
        min_pool=memory.min_pool,
        normalize_std=memory.normalize_std,
        weight=memory.weight * faded,
        small_pool=memory.small_pool,
        lost=lost,
        lowest=lowest_reward(memory),
    )
    opened = {
        "always": [True] * len(scores),
        "when_group_varies": [not zero_spread] * len(scores),
        "when_not_negative": [advantage >= 0 for advantage in outcome],
    }[memory.gate]
    kept = [by_turn if is_open else {} for by_turn, is_open in zip(made.by_rollout, opened, strict=True)]
    return GroupAdvantages(outcome, kept, zero_spread, made)


def outcome_advantages(scores: Sequence[float], settings: AdvantageSettings) -> list[float]:
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
        return [0.0]
    return [against(value, known, settings.normalize_std) for value in known]


def lowest_reward(memory: MemorySettings) -> float:
    """The reward of a note from which the answer cannot be told at all, P(mem) = 0. Infinity: no such number, since it
    hangs on the baseline, or on the logarithm's eps; the smallest reward of the pool then stands for it."""
    return 0.0 if memory.baseline == "none" and memory.reward != "log_ratio" else math.inf


# --- tokens --------------------------------------------------------------------------------------------------------


def row_advantages(
    trajectory: Trajectory,
    row: Row,
    outcome: float,
    memory: Mapping[int, float],
    lost: Collection[int] = (),
) -> list[float]:
    """The advantage of every token of a training row, `[tokens]`; 0 outside the generated ones.

    `outcome` goes to every generated token, `memory[turn]` on top of it to those that it is for: see `paid_slots`.

    Raises:
        ValueError: `memory` names a turn that does not exist.
    """
    if not memory.keys() <= set(range(len(trajectory.turns))):
        raise ValueError(
            f"question {trajectory.question_id}, rollout {trajectory.rollout}: memory advantages for turns "
            f"{sorted(memory)} of {len(trajectory.turns)}"
        )
    values = [0.0] * len(row.ids)
    for segment in row.segments:
        values[segment.start : segment.stop] = [float(outcome)] * (segment.stop - segment.start)
        if segment.turn in memory:
            for slot in paid_slots(trajectory.turns[segment.turn], segment.turn in lost):
                values[segment.start + slot] += memory[segment.turn]
    return values


def paid_slots(turn: Turn, lost: bool = False) -> range:
    """Which of the turn's generated tokens its memory advantage lies on: those of its note, tags included; all of them
    where the note is lost or not closed, since that was the doing of the turn as a whole.

    Forced tokens are the policy's words but not its doing: they have no advantage, also inside a note. A note without
    tokens of its own (one token holds all of it and more) has nothing to write its advantage on.
    """
    return range(len(turn.generated_ids)) if lost or turn.note_ids is None else note_slots(turn)


def note_slots(turn: Turn) -> range:
    """Which of the turn's generated tokens are its note's."""
    if turn.note_span is None:
        return range(0)
    # Spans count own tokens = forced + generated; advantages count generated ones only.
    start, stop = (max(0, edge - len(turn.forced_ids)) for edge in turn.note_span)
    return range(start, stop)


# --- what is reported ----------------------------------------------------------------------------------------------


def _metrics(
    batch: AdvantageBatch, made: Advantages, groups: Sequence[GroupAdvantages], weight: float | None
) -> dict[str, float | None]:
    """`memory_share`: the part of sum |A| over generated tokens, each kind apart, that notes earn.
    `memory_only_groups`: the share of groups in which notes are all that is paid for. `memory_weight`: the weight of
    the memory advantage, faded. `weight` None: the advantages are from a function of the user's own."""
    of_outcome = of_memory = 0.0
    for i, trajectory in enumerate(batch.trajectories):
        of_outcome += abs(made.outcome[i]) * trajectory.generated_tokens
        of_memory += sum(
            abs(a) * len(paid_slots(trajectory.turns[turn], turn in made.lost[i])) for turn, a in made.memory[i].items()
        )
    total = of_outcome + of_memory
    memory_only = [
        not any(made.outcome[i] for i in group) and any(a for i in group for a in made.memory[i].values())
        for group in batch.members
    ]
    counts: dict[str, float | None] = dict.fromkeys(("pool_fallbacks", "silent_notes", "lost_notes", "gated_notes"))
    if weight is not None:
        notes = [group.ungated for group in groups]
        kept = sum(len(by_turn) for group in groups for by_turn in group.memory)
        counts["pool_fallbacks"] = float(sum(one.fallbacks for one in notes))
        counts["silent_notes"] = float(sum(one.no_signal for one in notes))
        counts["lost_notes"] = float(sum(one.lost for one in notes))
        counts["gated_notes"] = float(sum(one.given for one in notes) - kept)
    return {
        "advantages/outcome_abs": mean(map(abs, made.outcome)),
        "advantages/memory_abs": mean(abs(value) for by_turn in made.memory for value in by_turn.values()),
        "advantages/memory_share": of_memory / total if total else None,
        "advantages/memory_only_groups": mean(map(float, memory_only)),
        "advantages/zero_spread_groups": mean(float(group.zero_spread) for group in groups),
        "advantages/lone_groups": float(sum(len(group.outcome) == 1 for group in groups)),
        "advantages/memory_weight": weight,
        **{f"advantages/{name}": value for name, value in counts.items()},
    }
