"""The outcome of a rollout as one number: was the final answer right, and was the format kept?

    score = match(answer, gold)   if all eight format rules hold (or `format_gate` is off)
    score = 0                     if one is broken
    score = None                  if nothing can be said: infrastructure failed, or there is no gold to compare with

None is not 0: a rollout without a score does not count (`OutcomeScore.counts`). It makes no training row, enters no
group and no pool, and appears in no metric but the count of its kind. Only `Trajectory.answer` is scored, which comes
from tokens of the policy alone; the prompt and tool texts cannot change a score.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from mempo.config.rewards import SCORES, OutcomeSettings
from mempo.errors import UserError
from mempo.rewards.answer_match import exact_match, match, normalize, split_spans
from mempo.rollout.plugins import call_own
from mempo.rollout.protocol import format_violations
from mempo.rollout.question import Question
from mempo.rollout.trajectory import StopReason, Trajectory

CustomScore = Callable[[Question, Trajectory], float | None]
"""Own score by import path. It takes the place of the answer match; None means "cannot be scored": the rollout
then does not count. It sees every rollout that did not fail for infrastructure reasons, those with a broken format
or without an answer (`answer` None) too."""


@dataclass(frozen=True)
class AnswerScore:
    """How well an answer fits the gold, every metric in [0, 1]. With k objectives the answer is split into n parts.

    Strict, 0 unless n = k: `em` (every part equals an alias of its objective), `sub_em` (every part contains one),
    `f1` (mean F1 of the parts).
    Partial credit: `mean_em`, `mean_f1`: part i against objective i, missing parts count 0, and the sum is divided by
    max(n, k): neither leaving parts out nor guessing more of them than asked can pay.
    """

    em: float
    f1: float
    sub_em: float
    mean_em: float
    mean_f1: float
    per_objective_em: tuple[float, ...]
    parts: int
    per_objective_f1: tuple[float, ...] = ()
    per_objective_sub_em: tuple[float, ...] = ()


@dataclass(frozen=True)
class OutcomeScore:
    """`score` None: the rollout is not scored, for `reason` (`error`, `overflow`, `no_gold`,
    `unmatchable_gold`, `custom`).

    `violations` counts the broken format rules by name; `answer` is None when there is no gold to compare with.
    """

    score: float | None
    answer: AnswerScore | None
    format_ok: bool
    violations: Mapping[str, int]
    reason: str | None = None

    @property
    def counts(self) -> bool:
        """Whether the rollout exists for training: only one with a score has rows, a place in its group, and notes in a
        pool."""
        return self.score is not None


def score_answer(prediction: str | None, question: Question, settings: OutcomeSettings) -> AnswerScore:
    """Compare an answer with the gold of its question. `prediction` None (no answer was given) scores 0 everywhere.

    Raises:
        ValueError: the question has no gold.
    """
    objectives = question.objectives
    if not objectives:
        raise ValueError(f"question {question.id}: no gold answer to compare with")
    variant = settings.normalization
    parts = _split(prediction, objectives, settings)
    pairs = list(zip(parts, objectives, strict=False))
    found = [match(part, aliases, variant) for part, aliases in pairs]
    ems, f1s, subs = ([float(m[i]) for m in found] for i in range(3))
    for values in (ems, f1s, subs):
        values += [0.0] * (len(objectives) - len(values))
    counts_agree = len(parts) == len(objectives)
    shares = max(len(parts), len(objectives))
    return AnswerScore(
        em=float(counts_agree and all(ems)),
        f1=sum(f1s) / len(objectives) if counts_agree else 0.0,
        sub_em=float(counts_agree and all(subs)),
        mean_em=sum(ems) / shares,
        mean_f1=sum(f1s) / shares,
        per_objective_em=tuple(ems),
        parts=len(parts),
        per_objective_f1=tuple(f1s),
        per_objective_sub_em=tuple(subs),
    )


def _split(prediction: str | None, objectives: Sequence[Sequence[str]], settings: OutcomeSettings) -> list[str]:
    """The parts of an answer, one per objective when all is well.

    An alias that holds the separator itself ("AC; DC") would make its objective unanswerable. So where there are more
    pieces than objectives, such an alias takes all of its own when they match.
    """
    if prediction is None:
        return []
    if len(objectives) == 1:
        return [prediction]
    spans = split_spans(prediction, settings.separator)
    parts: list[str] = []
    for done, aliases in enumerate(objectives):
        spare = len(spans) - (len(objectives) - done)
        counts = {len(split_spans(alias, settings.separator)) - 1 for alias in aliases} if spare > 0 else set()
        for extra in sorted(counts, reverse=True):
            joined = prediction[spans[0].start : spans[extra].stop] if 0 < extra <= spare else ""
            if joined and exact_match(joined, aliases, settings.normalization):
                spans = [slice(spans[0].start, spans[extra].stop), *spans[extra + 1 :]]
                break
        parts += [prediction[span] for span in spans[:1]]
        spans = spans[1:]
    return parts + [prediction[span] for span in spans]


def outcome_score(
    question: Question, trajectory: Trajectory, settings: OutcomeSettings, custom: CustomScore | None = None
) -> OutcomeScore:
    """Score a rollout. `custom` replaces the answer match; the format gate and the rule for errors stay.

    Raises:
        UserError: `custom` returned something that is neither a finite number nor None.
        ValueError: the trajectory belongs to another question, or `settings.score` is an import path and `custom` is
            missing.
    """
    if trajectory.question_id != question.id:
        raise ValueError(f"trajectory of question {trajectory.question_id!r} scored against question {question.id!r}")
    if custom is None and settings.score not in SCORES:
        raise ValueError(f"score {settings.score!r} is an import path: resolve it and pass the function as `custom`")
    violations = format_violations([turn.parsed for turn in trajectory.turns])
    answer = score_answer(trajectory.answer, question, settings) if question.objectives else None

    def scored(score: float | None, reason: str | None) -> OutcomeScore:
        return OutcomeScore(score, answer, not violations, violations, reason)

    if trajectory.is_error:
        return scored(None, "error")
    if trajectory.stop is StopReason.CONTEXT_OVERFLOW and settings.on_overflow == "exclude":
        return scored(None, "overflow")
    if custom is not None:
        value = _checked(custom, call_own("reward function", custom, question, trajectory))
        if value is None:
            return scored(None, "custom")
    elif answer is None:
        return scored(None, "no_gold")
    elif not matchable(question, settings):
        return scored(None, "unmatchable_gold")
    else:
        value = float(getattr(answer, settings.score))
    return scored(0.0 if violations and settings.format_gate else value, None)


def matchable(question: Question, settings: OutcomeSettings) -> bool:
    """False when an objective has only aliases of which normalisation leaves nothing: no answer could be right."""
    return all(any(normalize(a, settings.normalization) for a in aliases) for aliases in question.objectives)


def _checked(custom: CustomScore, value: Any) -> float | None:
    if value is None:
        return None
    if getattr(value, "ndim", None) == 0:  # numpy and torch scalars
        value = value.item()
    if isinstance(value, Real) and math.isfinite(value):
        return float(value)
    name = f"{getattr(custom, '__module__', '?')}:{getattr(custom, '__qualname__', repr(custom))}"
    raise UserError(f"score function {name} returned {value!r}; it must return a finite number, or None for no score")
