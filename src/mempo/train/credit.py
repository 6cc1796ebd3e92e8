"""Credit of a batch: per rollout once, then spread over its tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mempo.config.rewards import MemorySettings
from mempo.config.train import CreditSettings
from mempo.credit import (
    CustomCredit,
    checked_credit,
    gate_memory,
    memory_advantages,
    note_slots,
    outcome_credit,
    token_advantages,
)
from mempo.measures import mean
from mempo.rewards.memory import NoteScore
from mempo.rewards.outcome import OutcomeScore
from mempo.trajectory import Trajectory


@dataclass(frozen=True)
class Credit:
    """`tokens` `[rollouts]{turn: [generated tokens]}`, the two parts it is the sum of, and what is reported about it.

    `outcome` `[rollouts]`; `memory` `[rollouts]{turn: A}`, notes without credit left out. `counted` `[rollouts]`: those
    with a score; the others have advantages of 0 and make no training rows.
    """

    tokens: list[dict[int, list[float]]]
    outcome: list[float]
    memory: list[dict[int, float]]
    metrics: dict[str, float | None]
    counted: list[bool]


@dataclass(frozen=True)
class GroupCredit:
    """Advantages of the rollouts of one question, and counts of its notes; see `MemoryCredit`."""

    outcome: list[float]
    memory: list[dict[int, float]]
    zero_spread: bool
    scored: int
    fallbacks: int = 0
    silent: int = 0
    gated: int = 0


def group_credit(
    scores: Sequence[float | None],
    rewards: Sequence[Mapping[int, float | None]],
    credit: CreditSettings,
    memory: MemorySettings,
    custom: CustomCredit | None = None,
) -> GroupCredit:
    """From the scores `[rollouts]` and note rewards `[rollouts]{turn: r}` of one question to its advantages."""
    found = outcome_credit(scores, credit)
    if custom is not None:
        outcome, by_turn = checked_credit(custom, scores, rewards)
        return GroupCredit(outcome, by_turn, found.zero_spread, found.scored)
    made = memory_advantages(
        rewards,
        pool=memory.pool,
        min_pool=memory.min_pool,
        normalize_std=memory.normalize_std,
        weight=memory.weight,
        small_pool=memory.small_pool,
    )
    kept = gate_memory(made.by_rollout, scores, found, memory.gate)
    return GroupCredit(
        outcome=found.advantages,
        memory=kept,
        zero_spread=found.zero_spread,
        scored=found.scored,
        fallbacks=made.fallbacks,
        silent=made.no_signal,
        gated=made.credited - sum(map(len, kept)),
    )


def assign_credit(
    trajectories: Sequence[Trajectory],
    outcomes: Sequence[OutcomeScore],
    notes: Sequence[Sequence[NoteScore]],
    group_size: int,
    credit: CreditSettings,
    memory: MemorySettings,
    custom: CustomCredit | None = None,
) -> Credit:
    """Groups are runs of `group_size` rollouts of one question, in order. A rollout without a score does not count: it
    is in no group and its notes are in no pool, as if it had not been played.

    Raises:
        ValueError: the rollouts are not whole groups, or a group holds rollouts of two questions.
    """
    counted = [outcome.counts for outcome in outcomes]
    outcome, by_turn = [0.0] * len(trajectories), [dict[int, float]() for _ in trajectories]
    groups: list[GroupCredit] = []
    for group in whole_groups(trajectories, group_size):
        there = [i for i in group if counted[i]]
        if not there:
            continue
        scores = [outcomes[i].score for i in there]
        rewards = [{note.turn: note.r for note in notes[i]} for i in there]
        groups.append(group_credit(scores, rewards, credit, memory, custom))
        for i, value, values in zip(there, groups[-1].outcome, groups[-1].memory, strict=True):
            outcome[i], by_turn[i] = value, values
    tokens = [
        token_advantages(trajectory, value, values)
        for trajectory, value, values in zip(trajectories, outcome, by_turn, strict=True)
    ]
    metrics = _metrics(trajectories, outcome, by_turn, counted, groups, custom is not None)
    return Credit(tokens, outcome, by_turn, metrics, counted)


def whole_groups(trajectories: Sequence[Trajectory], group_size: int) -> list[range]:
    """Positions of the rollouts of every group: runs of `group_size` rollouts of one question, in order.

    Raises:
        ValueError: the rollouts are not whole groups, or a group holds rollouts of two questions.
    """
    if len(trajectories) % group_size:
        raise ValueError(f"{len(trajectories)} rollouts are not whole groups of {group_size}")
    groups = [range(first, first + group_size) for first in range(0, len(trajectories), group_size)]
    for group in groups:
        first = trajectories[group[0]].question_id
        for i in group:
            if trajectories[i].question_id != first:
                raise ValueError(
                    f"rollouts {group[0]} and {i} are in one group, but belong to the questions {first!r} and "
                    f"{trajectories[i].question_id!r}; a group holds the rollouts of one question: is the group size "
                    f"{group_size} the number of rollouts per question, and are they in order?"
                )
    return groups


def _metrics(
    trajectories: Sequence[Trajectory],
    outcome: Sequence[float],
    memory: Sequence[Mapping[int, float]],
    counted: Sequence[bool],
    groups: Sequence[GroupCredit],
    is_custom: bool,
) -> dict[str, float | None]:
    """`memory_share`: the part of sum |A| over generated tokens, each kind apart, that is memory credit.
    `memory_only_groups`: the share of groups in which notes are all that is paid for. Rollouts that do not count, and
    groups in which none does, are in no average."""
    of_outcome = of_memory = 0.0
    for trajectory, value, by_turn in zip(trajectories, outcome, memory, strict=True):
        of_outcome += abs(value) * trajectory.generated_tokens
        of_memory += sum(abs(a) * len(note_slots(trajectory.turns[turn])) for turn, a in by_turn.items())
    total = of_outcome + of_memory
    memory_only = [
        not any(group.outcome) and any(a for by_turn in group.memory for a in by_turn.values()) for group in groups
    ]
    return {
        "credit/outcome_abs": mean(abs(value) for value, counts in zip(outcome, counted, strict=True) if counts),
        "credit/memory_abs": mean(abs(value) for by_turn in memory for value in by_turn.values()),
        "credit/memory_share": of_memory / total if total else None,
        "credit/memory_only_groups": mean(map(float, memory_only)),
        "credit/zero_spread_groups": mean(float(group.zero_spread) for group in groups),
        "credit/lone_groups": float(sum(group.scored == 1 for group in groups)),
        "credit/pool_fallbacks": None if is_custom else float(sum(group.fallbacks for group in groups)),
        "credit/silent_notes": None if is_custom else float(sum(group.silent for group in groups)),
        "credit/gated_notes": None if is_custom else float(sum(group.gated for group in groups)),
    }
