"""The arithmetic of one note: from the log-probs of its gold tokens to its reward."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mempo.config.rewards import MemorySettings
from mempo.rewards.probe import NoSignal


@dataclass(frozen=True)
class Evidence:
    """What is known of one note. `mem`, `base` and each of `ahead`: log-probs `[gold]`; `base` None: no baseline.

    `objectives` `[gold]`: which objective a gold token belongs to. `turn` is 0-based. `history_tokens`: the whole
    history before the turn, question included.
    """

    turn: int
    mem: np.ndarray
    base: np.ndarray | None = None
    ahead: Sequence[np.ndarray] = ()
    objectives: Sequence[int] = ()
    note_tokens: int = 0
    history_tokens: int = 0

    @property
    def finite(self) -> bool:
        sides = [self.mem, *self.ahead, *(() if self.base is None else (self.base,))]
        return all(np.isfinite(side).all() for side in sides)


@dataclass(frozen=True)
class NoteScore:
    """The reward of one note; `turn` is 0-based. `r` None: no signal, for `reason` (a `NoSignal`).

    `p_mem`, `p_baseline`: what `r` is made of, None where there is no such number; `p_baseline` is P given the
    baseline's context, whichever it is. `p_mem_raw`, `p_baseline_raw`: the same without any threshold or look
    ahead. `kept_*`: how many of the `gold_tokens` passed the threshold. `p_ahead`: P with the tool results of the next
    turns.
    """

    turn: int
    p_mem: float | None
    p_baseline: float | None
    r: float | None
    gold_tokens: int
    kept_mem: int
    kept_baseline: int | None
    p_mem_raw: float | None
    p_baseline_raw: float | None = None
    reason: str | None = None
    p_ahead: tuple[float, ...] = ()


def silent(turn: int, reason: NoSignal, gold_tokens: int = 0) -> NoteScore:
    """A note that cannot be judged."""
    return NoteScore(turn, None, None, None, gold_tokens, 0, None, None, None, reason)


def note_reward(evidence: Evidence, settings: MemorySettings, least_logprob: float | None = None) -> NoteScore:
    """The reward of one note. `least_logprob`: that of the threshold (see `threshold_logprob`)."""
    if not evidence.finite:
        return silent(evidence.turn, NoSignal.NAN, gold_tokens=len(evidence.mem))
    everything = np.ones(len(evidence.mem), dtype=bool)

    def p(logprobs: np.ndarray, keep: np.ndarray = everything) -> float | None:
        return _probability(logprobs, keep, evidence.objectives, settings)

    keep_mem, keep_base = _kept(evidence.mem, evidence.base, settings, least_logprob)
    ahead = tuple(value for logprobs in evidence.ahead if (value := p(logprobs)) is not None)
    p_mem = _discounted(p(evidence.mem, keep_mem), ahead, settings.lookahead.gamma)
    p_base = None if evidence.base is None or keep_base is None else p(evidence.base, keep_base)
    known = p_mem is not None and (evidence.base is None or p_base is not None)
    return NoteScore(
        turn=evidence.turn,
        p_mem=p_mem,
        p_baseline=p_base,
        r=_reward(p_mem, p_base, evidence, settings) if known and p_mem is not None else None,
        gold_tokens=len(evidence.mem),
        kept_mem=int(keep_mem.sum()),
        kept_baseline=None if keep_base is None else int(keep_base.sum()),
        p_mem_raw=p(evidence.mem),
        p_baseline_raw=None if evidence.base is None else p(evidence.base),
        reason=None if known else NoSignal.EMPTY_CHOICE,
        p_ahead=ahead,
    )


def threshold_logprob(evidence: Sequence[Evidence], settings: MemorySettings) -> float | None:
    """The log-prob that a gold token must exceed: log `threshold_value`, or the quantile of the batch; None: any."""
    if settings.threshold == "none":
        return None
    if settings.threshold_quantile is None:
        return math.log(settings.threshold_value)
    sides = [side for note in evidence if note.finite for side in (note.mem, note.base) if side is not None]
    return float(np.quantile(np.concatenate(sides), settings.threshold_quantile)) if sides else None


def _kept(
    mem: np.ndarray, base: np.ndarray | None, settings: MemorySettings, least_logprob: float | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Masks `[gold]` of the tokens that enter the mean on either side."""
    if settings.threshold == "none" or least_logprob is None:
        everything = np.ones(len(mem), dtype=bool)
        return everything, None if base is None else everything
    above_mem = mem > least_logprob
    if base is None:
        return above_mem, None
    above_base = base > least_logprob
    if settings.threshold == "independent":
        return above_mem, above_base
    common = above_mem & above_base if settings.threshold == "both" else above_mem | above_base
    return common, common


def _probability(
    logprobs: np.ndarray, keep: np.ndarray, objectives: Sequence[int], settings: MemorySettings
) -> float | None:
    """exp(mean log-prob) over the kept tokens, or the mean of that over objectives; None when nothing is kept."""
    if not keep.any():
        return 1.0 if settings.empty_is_one else None
    if settings.probe.objectives == "averaged":
        owner = np.asarray(objectives)
        return float(np.mean([math.exp(float(logprobs[owner == k].mean())) for k in sorted(set(objectives))]))
    return math.exp(float(logprobs[keep].mean()))


def _discounted(p_mem: float | None, ahead: Sequence[float], gamma: float) -> float | None:
    """sum_j gamma^j P_j / sum_j gamma^j, P_0 being the note alone."""
    if p_mem is None or not ahead:
        return p_mem
    weights = [gamma**j for j in range(len(ahead) + 1)]
    return sum(w * p for w, p in zip(weights, (p_mem, *ahead), strict=True)) / sum(weights)


def _reward(p_mem: float, p_base: float | None, evidence: Evidence, settings: MemorySettings) -> float:
    eps = settings.ratio_eps
    if settings.reward == "log_ratio":
        r = math.log(p_mem + eps) - (0.0 if p_base is None else math.log(p_base + eps))
    elif settings.reward == "compression":
        ratio = p_mem if p_base is None else p_mem / (p_base + eps)
        r = ratio * evidence.history_tokens / evidence.note_tokens
    else:
        r = p_mem - (0.0 if p_base is None else p_base)
    if settings.length_penalty:
        if settings.length_limit_tokens is None:
            raise ValueError("length_penalty needs length_limit_tokens, the note length that costs a whole lambda")
        r -= settings.length_penalty * evidence.note_tokens / settings.length_limit_tokens
    return r
