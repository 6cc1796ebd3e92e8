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

    `outcome` `[rollouts]`; `memory` `[rollouts]{turn: A}`, notes without credit left out.
    """

    tokens: list[dict[int, list[float]]]
    outcome: list[float]
    memory: list[dict[int, float]]
    metrics: dict[str, float | None]


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
    """Groups are runs of `group_size` rollouts of one question, in order.

    Raises:
        ValueError: the rollouts are not whole groups.
    """
    if len(trajectories) % group_size:
        raise ValueError(f"{len(trajectories)} rollouts are not whole groups of {group_size}")
    groups: list[GroupCredit] = []
    for first in range(0, len(trajectories), group_size):
        group = slice(first, first + group_size)
        scores = [outcome.score for outcome in outcomes[group]]
        rewards = [{note.turn: note.r for note in scored} for scored in notes[group]]
        groups.append(group_credit(scores, rewards, credit, memory, custom))
    outcome = [value for group in groups for value in group.outcome]
    by_turn = [values for group in groups for values in group.memory]
    tokens = [
        token_advantages(trajectory, value, values)
        for trajectory, value, values in zip(trajectories, outcome, by_turn, strict=True)
    ]
    return Credit(tokens, outcome, by_turn, _metrics(trajectories, outcome, by_turn, groups, custom is not None))


def _metrics(
    trajectories: Sequence[Trajectory],
    outcome: Sequence[float],
    memory: Sequence[Mapping[int, float]],
    groups: Sequence[GroupCredit],
    is_custom: bool,
) -> dict[str, float | None]:
    """`memory_share`: the part of sum |A| over generated tokens, each kind apart, that is memory credit.
    `memory_only_groups`: the share of groups in which notes are all that is paid for."""
    of_outcome = of_memory = 0.0
    for trajectory, value, by_turn in zip(trajectories, outcome, memory, strict=True):
        of_outcome += abs(value) * trajectory.generated_tokens
        of_memory += sum(abs(a) * len(note_slots(trajectory.turns[turn])) for turn, a in by_turn.items())
    total = of_outcome + of_memory
    memory_only = [
        not any(group.outcome) and any(a for by_turn in group.memory for a in by_turn.values()) for group in groups
    ]
    return {
        "credit/outcome_abs": mean(abs(value) for value in outcome),
        "credit/memory_abs": mean(abs(value) for by_turn in memory for value in by_turn.values()),
        "credit/memory_share": of_memory / total if total else None,
        "credit/memory_only_groups": mean(map(float, memory_only)),
        "credit/zero_spread_groups": mean(float(group.zero_spread) for group in groups),
        "credit/lone_groups": float(sum(group.scored == 1 for group in groups)),
        "credit/pool_fallbacks": None if is_custom else float(sum(group.fallbacks for group in groups)),
        "credit/silent_notes": None if is_custom else float(sum(group.silent for group in groups)),
        "credit/gated_notes": None if is_custom else float(sum(group.gated for group in groups)),
    }
