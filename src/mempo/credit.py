"""Credit: from the scores of a group of rollouts to one advantage per generated token.

    A_outcome = (score - mean of the group) / (std of the group + eps)      on every generated token of the rollout
    A_memory  = (r - mean of the pool) / (std of the pool + eps)            on the tokens of the note, tags included
    A         = A_outcome + weight * A_memory, where the gate is open

(MemPO, arXiv 2603.00680; std with n - 1, as in verl.) A group is the rollouts of one question, and each rollout counts
once in it, however many turns or training rows it has. None means "not known": it enters no mean and gets no credit.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal

import numpy as np

from mempo.config.train import CreditSettings
from mempo.errors import UserError
from mempo.imports import call_own
from mempo.trajectory import Trajectory, Turn

EPS = 1e-6
"""Added to standard deviations."""

NoteRewards = Mapping[int, float | None]
"""`{turn: r}` of one rollout; r None: the note gives no signal."""

CustomCredit = Callable[
    [Sequence[float | None], Sequence[NoteRewards]], tuple[Sequence[float], Sequence[Mapping[int, float]]]
]
"""Own credit by import path, called once per question: `credit(scores, notes)` with `scores` `[rollouts]` and `notes`
`[rollouts]{turn: r}` returns the outcome advantages `[rollouts]` and the memory advantages `[rollouts]{turn: A}`."""


# --- outcome -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OutcomeCredit:
    """`advantages` `[rollouts]`: 0 for a rollout without a score. `scored`: how many rollouts have one.

    `mean`, `std` are None when they do not exist. `zero_spread`: all scores are equal, so every advantage is 0.
    """

    advantages: list[float]
    scored: int
    mean: float | None
    std: float | None
    zero_spread: bool

    @property
    def missing(self) -> int:
        return len(self.advantages) - self.scored


def outcome_credit(scores: Sequence[float | None], settings: CreditSettings) -> OutcomeCredit:
    """Outcome advantages of one group, with what a run reports about it.

    A group with a single score has nothing to compare it with: the advantage is 0, and a warning says so (once, by
    Python's default filter).

    Raises:
        ValueError: a score is not finite.
    """
    known = _finite(scores, "score of rollout")
    if len(known) == 1:
        warnings.warn(
            "a group has a single scored rollout: its outcome advantage is 0, so nothing is learnt from it; "
            "use at least 2 rollouts per question, and look at the error counts if you do",
            stacklevel=2,
        )
    advantages = [0.0] * len(scores)
    for i, value in zip(known, _standardize(list(known.values()), settings.normalize_std, EPS), strict=True):
        advantages[i] = value
    values = np.array(list(known.values()))
    return OutcomeCredit(
        advantages=advantages,
        scored=len(known),
        mean=float(values.mean()) if len(known) else None,
        std=float(values.std(ddof=1)) if len(known) > 1 else None,
        zero_spread=len(set(known.values())) == 1,
    )


def outcome_advantages(scores: Sequence[float | None], settings: CreditSettings) -> list[float]:
    """Outcome advantages `[rollouts]` of one group; see `outcome_credit`."""
    return outcome_credit(scores, settings).advantages


# --- memory --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pool:
    """Rewards normalised together. `turn` None: all of the question's. `mean`, `std`: None when they do not exist."""

    turn: int | None
    size: int
    mean: float | None
    std: float | None


@dataclass(frozen=True)
class MemoryCredit:
    """Memory advantages of one question: `by_rollout` `[rollouts]{turn: A}`, notes without signal left out.

    Counts of notes: `credited` have an advantage; `fallbacks` of them through the question's pool because their turn's
    was too small; `small_pools` have a reward and no advantage, because no pool had two; `no_reward` had none at all.
    """

    by_rollout: list[dict[int, float]]
    pools: tuple[Pool, ...] = ()
    credited: int = 0
    fallbacks: int = 0
    small_pools: int = 0
    no_reward: int = 0

    @property
    def no_signal(self) -> int:
        return self.small_pools + self.no_reward


def memory_advantages(
    rewards: Sequence[NoteRewards],
    *,
    pool: Literal["question", "turn"] = "turn",
    min_pool: int = 4,
    eps: float = EPS,
    normalize_std: bool = True,
    weight: float = 1.0,
    small_pool: Literal["no_signal", "original"] = "no_signal",
) -> MemoryCredit:
    """Memory advantages of one question from the note rewards of its rollouts, `[rollouts]{turn: r}`.

    `pool: turn` compares notes of the same turn index; a turn with fewer than `min_pool` rewards falls back to the pool
    of the whole question, else the only rollout that reaches turn t would be paid for running long. Where even that has
    fewer than two, there is no signal. `small_pool: original` never falls back and takes mean 0 and std 1 for a pool of
    one, so the raw reward becomes the credit.

    Raises:
        ValueError: a reward is not finite.
    """
    notes = [(i, turn, r) for i, rollout in enumerate(rewards) for turn, r in rollout.items()]
    known = _finite([r for _, _, r in notes], "reward of note")
    members: dict[int | None, list[int]] = {}  # pool -> positions in `notes`
    fallbacks = 0
    for n in known:
        members.setdefault(None if pool == "question" else notes[n][1], []).append(n)
    if pool == "turn" and small_pool != "original":
        small = [turn for turn, found in members.items() if len(found) < min_pool]
        fallbacks = sum(len(members[turn]) for turn in small)
    else:
        small = []

    by_rollout: list[dict[int, float]] = [{} for _ in rewards]
    pools: list[Pool] = []

    def give(turn: int | None, pooled: list[int], receivers: list[int]) -> None:
        values = [known[n] for n in pooled]
        pools.append(_pool(turn, values))
        if len(values) < 2 and small_pool != "original":
            return
        credit = dict(zip(pooled, _memory_standardize(values, normalize_std, eps), strict=True))
        for n in receivers:
            rollout, note_turn, _ = notes[n]
            by_rollout[rollout][note_turn] = weight * credit[n]

    for turn, found in members.items():
        if turn not in small:
            give(turn, found, found)
    if small:
        give(None, list(known), [n for turn in small for n in members[turn]])
    credited = sum(map(len, by_rollout))
    return MemoryCredit(
        by_rollout=[dict(sorted(rollout.items())) for rollout in by_rollout],
        pools=tuple(sorted(pools, key=lambda p: -1 if p.turn is None else p.turn)),
        credited=credited,
        fallbacks=fallbacks if len(known) > 1 else 0,
        small_pools=len(known) - credited,
        no_reward=len(notes) - len(known),
    )


Gate = Literal["always", "when_group_varies", "when_not_negative"]


def gate_memory(
    memory: Sequence[Mapping[int, float]], scores: Sequence[float | None], outcome: OutcomeCredit, gate: Gate
) -> list[dict[int, float]]:
    """Memory advantages `[rollouts]{turn: A}` of one question without those that the gate keeps back.

    `when_group_varies`: none in a group whose scores are all equal, where a dense signal would be the only one.
    `when_not_negative`: only in rollouts with a score and an outcome advantage >= 0 (the condition that the original's
    code holds commented out). What is not known opens no gate.
    """
    if gate == "always":
        opened = [True] * len(memory)
    elif gate == "when_group_varies":
        opened = [outcome.scored > 1 and not outcome.zero_spread] * len(memory)
    else:
        known = zip(scores, outcome.advantages, strict=True)
        opened = [score is not None and advantage >= 0 for score, advantage in known]
    return [dict(by_turn) if is_open else {} for by_turn, is_open in zip(memory, opened, strict=True)]


# --- tokens --------------------------------------------------------------------------------------------------------


def token_advantages(trajectory: Trajectory, outcome: float, memory: Mapping[int, float]) -> dict[int, list[float]]:
    """The advantage of every generated token, `{turn: [generated tokens]}`.

    `outcome` goes to every generated token of the rollout, `memory[turn]` on top of it to those of the turn's note.
    Forced tokens are the policy's words but not its doing: they carry no credit, also inside a note. A note without
    tokens of its own (one token holds all of it and more) has nothing to write its credit on.

    Raises:
        ValueError: `memory` names a turn that does not exist or holds no closed note.
    """
    with_note = {turn.index for turn in trajectory.turns if turn.note_ids is not None}
    if not with_note.issuperset(memory):
        raise ValueError(
            f"question {trajectory.question_id}, rollout {trajectory.rollout}: memory advantages for turns "
            f"{sorted(memory)}, but closed notes only in turns {sorted(with_note)}"
        )
    out: dict[int, list[float]] = {}
    for turn in trajectory.turns:
        values = [float(outcome)] * len(turn.generated_ids)
        if turn.index in memory:
            for i in note_slots(turn):
                values[i] += memory[turn.index]
        out[turn.index] = values
    return out


def note_slots(turn: Turn) -> range:
    """Which of the turn's generated tokens are its note's."""
    if turn.note_span is None:
        return range(0)
    # Spans count own tokens = forced + generated; advantages count generated ones only.
    start, stop = (max(0, edge - len(turn.forced_ids)) for edge in turn.note_span)
    return range(start, stop)


# --- own credit ----------------------------------------------------------------------------------------------------


def checked_credit(
    custom: CustomCredit, scores: Sequence[float | None], notes: Sequence[NoteRewards]
) -> tuple[list[float], list[dict[int, float]]]:
    """Call a user's credit function for one question and check what it returns.

    Raises:
        UserError: not a pair, wrong lengths, a value that is not a finite number, credit for a turn without a note, or
            a non-zero advantage for a rollout without a score. The message names the function.
    """
    name = f"{getattr(custom, '__module__', '?')}:{getattr(custom, '__qualname__', repr(custom))}"

    def refuse(fact: str) -> UserError:
        return UserError(f"credit function {name} {fact}")

    def number(value: Any, what: str) -> float:
        if getattr(value, "ndim", None) == 0:  # numpy and torch scalars
            value = value.item()
        if not isinstance(value, Real) or not math.isfinite(value):
            raise refuse(f"returned {value!r} as {what}; it must be a finite number")
        return float(value)

    # It may keep or change what it is given; the caller's values stay its own.
    result: Any = call_own(f"credit function {name}", custom, list(scores), [dict(rollout) for rollout in notes])
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise refuse(f"returned {type(result).__name__}; it must return (outcome advantages, memory advantages)")
    outcome, memory = result
    for what, part in (("outcome", outcome), ("memory", memory)):
        is_list = hasattr(part, "__len__") and not isinstance(part, Mapping | str)
        if not is_list or len(part) != len(scores):
            size = f"{len(part)} values" if is_list else repr(part)
            raise refuse(
                f"returned {size} as {what} advantages for {len(scores)} rollouts; it must return one a rollout"
            )
    advantages = [number(value, f"the outcome advantage of rollout {i}") for i, value in enumerate(outcome)]
    for i, (score, value) in enumerate(zip(scores, advantages, strict=True)):
        if score is None and value != 0:
            raise refuse(f"gave rollout {i} the outcome advantage {value:g}, but it has no score (None): it must be 0")
    credit: list[dict[int, float]] = []
    for i, (given, known) in enumerate(zip(memory, notes, strict=True)):
        if not isinstance(given, Mapping):
            raise refuse(f"returned {given!r} as the memory advantages of rollout {i}; it must be a mapping from turn")
        strange = sorted(set(given) - set(known), key=repr)
        if strange:
            raise refuse(f"gave rollout {i} memory credit for turns {strange}; its scored notes are {sorted(known)}")
        credit.append({turn: number(v, f"the advantage of rollout {i}, turn {turn}") for turn, v in given.items()})
    return advantages, credit


# --- arithmetic ----------------------------------------------------------------------------------------------------


def _finite(values: Sequence[float | None], what: str) -> dict[int, float]:
    """Position -> float64 of the values that are known."""
    known = {i: float(value) for i, value in enumerate(values) if value is not None}
    for i, value in known.items():
        if not math.isfinite(value):
            raise ValueError(f"{what} {i} is {value}; a value that is not known must be None")
    return known


def _standardize(values: Sequence[float], normalize_std: bool, eps: float) -> list[float]:
    """(value - mean) / (unbiased std + eps); exactly 0 for fewer than two values and for equal ones."""
    if len(set(values)) < 2:  # the mean of equal floats need not be that float
        return [0.0] * len(values)
    array = np.asarray(values, dtype=np.float64)
    centred = array - array.mean()
    return (centred / (array.std(ddof=1) + eps) if normalize_std else centred).tolist()


def _memory_standardize(values: Sequence[float], normalize_std: bool, eps: float) -> list[float]:
    """As `_standardize`, but a pool of one has mean 0 and std 1, as in the original."""
    if len(values) == 1:
        return [values[0] / (1 + eps) if normalize_std else values[0]]
    return _standardize(values, normalize_std, eps)


def _pool(turn: int | None, values: Sequence[float]) -> Pool:
    array = np.asarray(values, dtype=np.float64)
    return Pool(
        turn,
        len(values),
        float(array.mean()) if len(values) else None,
        float(array.std(ddof=1)) if len(values) > 1 else None,
    )
