"""Who pays: how much of the credit is memory credit, and in how many groups notes are all that is paid for.

A dense z-scored signal can drown a sparse one: where all rollouts of a group fail, the outcome says nothing, and the
notes still get credit of the usual size.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from mempo.diagnose.numbers import mean, ratio
from mempo.diagnose.records import Batch, RolloutRecord


@dataclass(frozen=True)
class CreditShare:
    """`memory_share`: the part of sum |A| over generated tokens, outcome and memory apart, that is memory credit.

    Shares of groups: `both` kinds of credit, `outcome_only`, `memory_only`, `neither`. `outcome_abs`, `memory_abs`:
    mean |A| of a rollout and of a note with credit. None where advantages are not known.
    """

    memory_share: float | None
    outcome_abs: float | None
    memory_abs: float | None
    both: float | None
    outcome_only: float | None
    memory_only: float | None
    neither: float | None


@dataclass(frozen=True)
class GoldKept:
    """How many gold tokens the threshold let into the mean, over the notes whose log-probs are known. `base` None:
    the baseline has no side of its own. `silent`: notes without a reward, by reason."""

    gold_tokens: int
    mem: float | None
    base: float | None
    notes: int
    silent: dict[str, int]


def credit_share(batch: Batch) -> CreditShare:
    if batch.credit == "none":
        return CreditShare(None, None, None, None, None, None, None)
    of_outcome = of_memory = 0.0
    for rollout in batch.rollouts:
        of_outcome += abs(rollout.advantage or 0.0) * sum(turn.generated_tokens for turn in rollout.turns)
        of_memory += sum(abs(a) * slots for a, slots in _note_credit(rollout))
    kinds = Counter(
        (any(rollout.advantage for rollout in group), any(a for rollout in group for a, _ in _note_credit(rollout)))
        for group in batch.groups
    )
    groups = len(batch.groups)
    return CreditShare(
        memory_share=ratio(of_memory, of_outcome + of_memory),
        outcome_abs=mean(None if r.advantage is None else abs(r.advantage) for r in batch.rollouts),
        memory_abs=mean(abs(a) for rollout in batch.rollouts for a, _ in _note_credit(rollout)),
        both=ratio(kinds[True, True], groups),
        outcome_only=ratio(kinds[True, False], groups),
        memory_only=ratio(kinds[False, True], groups),
        neither=ratio(kinds[False, False], groups),
    )


def gold_kept(batch: Batch) -> GoldKept:
    signals = [turn.signal for _, turn in batch.noted if turn.signal is not None]
    known = [signal for signal in signals if signal.p_mem_raw is not None]
    gold = sum(signal.gold_tokens for signal in known)
    two_sided = [signal for signal in known if signal.kept_base is not None]
    return GoldKept(
        gold_tokens=gold,
        mem=ratio(sum(signal.kept_mem for signal in known), gold),
        base=ratio(sum(s.kept_base or 0 for s in two_sided), sum(s.gold_tokens for s in two_sided)),
        notes=len(signals),
        silent=dict(sorted(Counter(str(s.reason) for s in signals if s.r is None).items())),
    )


def _note_credit(rollout: RolloutRecord) -> list[tuple[float, int]]:
    """`(advantage, tokens it is written on)` of the notes with credit."""
    return [
        (turn.signal.advantage, turn.note_slots)
        for turn in rollout.noted
        if turn.signal is not None and turn.signal.advantage is not None
    ]
