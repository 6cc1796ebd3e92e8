"""P, r and credit by turn: does the signal praise notes, or turns?

P(full) grows with the turn while P(mem) does not, so rewards normalised over all turns of a question praise early notes
and punish late ones, whatever they say. Both poolings are computed here from the saved r, beside the credit that was
really given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from mempo.diagnose.numbers import mean, std
from mempo.diagnose.records import Batch, NoteSignal, RolloutRecord, TurnRecord
from mempo.train.pools import memory_advantages

MIN_NOTES = 8
"""A turn with fewer notes with credit says nothing about drift."""


@dataclass(frozen=True)
class TurnMeasures:
    """Means over the notes of one turn; `turn` counts from 1. `rollouts`: how many got to it; `scored`: notes with a
    reward. `credit_question`, `credit_turn`: the reward standardised within the question, and within the question's
    turn (the question again where the turn has fewer than `min_pool`). `credit`: what was given, weight and gate
    included."""

    turn: int
    rollouts: int
    notes: int
    scored: int
    p_mem: float | None
    p_mem_raw: float | None
    p_base: float | None
    r: float | None
    r_std: float | None
    credit_question: float | None
    credit_turn: float | None
    credit: float | None
    credited: int
    note_tokens: float | None


def by_turn(batch: Batch, min_pool: int = 4) -> list[TurnMeasures]:
    """A line for every turn from the second on that some rollout reached."""
    pooled: dict[str, dict[int, list[float]]] = {"question": {}, "turn": {}}
    for group in batch.groups:
        rewards = [rewards_of(rollout) for rollout in group]
        for pool, found in pooled.items():
            for by_index in standardized(rewards, pool, min_pool):
                for index, value in by_index.items():
                    found.setdefault(index, []).append(value)
    turns = max((len(rollout.turns) for rollout in batch.rollouts), default=0)
    return [_measures(batch, index, pooled) for index in range(1, turns)]


def standardized(rewards: list[dict[int, float]], pool: str, min_pool: int) -> list[dict[int, float]]:
    """Rewards `[rollouts]{turn: r}` of one question as credit of weight 1."""
    choice: Literal["question", "turn"] = "turn" if pool == "turn" else "question"
    return memory_advantages(rewards, pool=choice, min_pool=min_pool).by_rollout


def rewards_of(rollout: RolloutRecord) -> dict[int, float]:
    return {t.index: t.signal.r for t in rollout.noted if t.signal is not None and t.signal.r is not None}


def drift(turns: list[TurnMeasures], of: Callable[[TurnMeasures], float | None]) -> float | None:
    """The largest mean credit of a turn less the smallest; None where fewer than two turns have enough notes."""
    known = [value for turn in turns if turn.scored >= MIN_NOTES and (value := of(turn)) is not None]
    return max(known) - min(known) if len(known) > 1 else None


def _measures(batch: Batch, index: int, pooled: dict[str, dict[int, list[float]]]) -> TurnMeasures:
    there = [rollout.turns[index] for rollout in batch.rollouts if len(rollout.turns) > index]
    notes = [turn for turn in there if turn.note is not None]
    signals = [turn.signal for turn in notes if turn.signal is not None]
    rewards = [signal.r for signal in signals if signal.r is not None]
    credits = [signal.advantage for signal in signals if signal.advantage is not None]

    def average(of: Callable[[NoteSignal], float | None]) -> float | None:
        return mean(of(signal) for signal in signals)

    return TurnMeasures(
        turn=index + 1,
        rollouts=len(there),
        notes=len(notes),
        scored=len(rewards),
        p_mem=average(lambda s: s.p_mem),
        p_mem_raw=average(lambda s: s.p_mem_raw),
        p_base=average(lambda s: s.p_base),
        r=mean(rewards),
        r_std=std(rewards),
        credit_question=mean(pooled["question"].get(index, [])),
        credit_turn=mean(pooled["turn"].get(index, [])),
        credit=mean(credits),
        credited=len(credits),
        note_tokens=mean(_tokens(turn) for turn in notes),
    )


def _tokens(turn: TurnRecord) -> float:
    return float(turn.note_tokens)
