"""Saved rollouts scored again, from their small lines alone: no model, no tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from mempo.config.rewards import SCORES, OutcomeSettings
from mempo.errors import UserError, nearest
from mempo.evaluate.costs import costs, steps_of_line
from mempo.evaluate.published_scores import METRICS, variant_scores
from mempo.rewards.outcome import matchable, score_answer
from mempo.rewards.rollout_metrics import answer_record
from mempo.rollout.question import Question, as_gold
from mempo.rollout.trajectory import StopReason

SCORERS = ("default", *METRICS)
"""`default` is this library's own, with the settings of `reward.*`; the others are `VARIANTS`."""


def scorers_of(names: str) -> tuple[str, ...]:
    """The scorers of a list such as `default,mem1`.

    Raises:
        UserError: an unknown name, with the nearest known one.
    """
    found = tuple(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))
    for name in found:
        if name not in SCORERS:
            raise UserError(f"unknown scorer {name!r}{nearest(name, SCORERS)}; known: {', '.join(SCORERS)}")
    if not found:
        raise UserError(f"no scorer is named; known: {', '.join(SCORERS)}")
    return found


def metric_names(scorers: Sequence[str]) -> list[str]:
    """Names of the metrics that published scorers add to a line, such as `mem1/f1`."""
    return [f"{name}/{metric}" for name in scorers if name in METRICS for metric in METRICS[name]]


def rescored(
    lines: Iterable[dict[str, Any]], scorers: Sequence[str], settings: OutcomeSettings
) -> Iterator[dict[str, Any]]:
    """The lines (see `filled`) with their scores made again, in place; everything else stays. `score` stays too where
    `settings.score` is a function of the user's own, which looks at whole rollouts.

    Raises:
        UserError: gold that cannot be used, named by its question.
    """
    judge = _Judge(settings)
    published = [name for name in scorers if name in METRICS]
    for out in lines:
        if "default" in scorers:
            judge.score(out)
        if published:
            objectives, meta = judge.question(out).objectives, {"aug_answer": out.get("aug_answer")}
            for name in published:
                known = bool(objectives) and not out["is_error"]
                found = variant_scores(name, out["answer"], objectives, meta) if known else {}
                for metric in METRICS[name]:
                    out[f"{name}/{metric}"] = found.get(metric)
        yield out


def filled(out: dict[str, Any]) -> dict[str, Any]:
    """The line, with what those of other programs, or of older versions, lack filled in: predictions need only
    `question_id`, `answer` and `gold`.

    Raises:
        UserError: the line has no `answer`.
    """
    if "answer" not in out:
        raise UserError(f"rollout of question {out['question_id']!r} has no answer (null: none was given)")
    for key, value in (("rollout", 0), ("is_error", False), ("gold", None), ("stop", StopReason.ANSWERED)):
        out.setdefault(key, value)
    if "objectives" not in out:
        out["objectives"] = len(_question(out).objectives)
    if "dependency" not in out and "turns" in out:
        out.update(costs(steps_of_line(out)))
    return out


class _Question(Question):
    """One whose objectives are made once: its lines are many."""

    @cached_property
    def objectives(self) -> tuple[tuple[str, ...], ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().objectives


class _Known(NamedTuple):
    """A question as its lines tell it, whether its gold can be matched at all, and the answers scored so far."""

    raw_gold: Any
    question: Question
    can_match: bool
    answers: dict[str | None, dict[str, Any]]


class _Judge:
    """Our own scores of answers; what is known of a question is kept while its lines come by."""

    def __init__(self, settings: OutcomeSettings) -> None:
        self._settings = settings
        self._questions: dict[str, _Known] = {}

    def question(self, line: Mapping[str, Any]) -> Question:
        return self._known(line).question

    def _known(self, line: Mapping[str, Any]) -> _Known:
        known = self._questions.get(line["question_id"])
        if known is None or known.raw_gold != line["gold"]:
            question = _question(line)
            can_match = bool(question.objectives) and matchable(question, self._settings)
            known = self._questions[question.id] = _Known(line["gold"], question, can_match, {})
        return known

    def score(self, line: dict[str, Any]) -> None:
        known, answer = self._known(line), line["answer"]
        metrics = known.answers.get(answer)
        if metrics is None:
            score = score_answer(answer, known.question, self._settings) if known.question.objectives else None
            metrics = known.answers[answer] = answer_record(score)
        line.update(metrics)
        if self._settings.score in SCORES:
            line["unscored"] = self._unscored(line, known)
            broken = bool(line.get("violations")) and self._settings.format_gate
            value = 0.0 if broken else metrics[self._settings.score]
            line["score"] = None if line["unscored"] else float(value)

    def _unscored(self, line: Mapping[str, Any], known: _Known) -> str | None:
        """Why the rollout has no score, in the words of `OutcomeScore.reason` and its order."""
        if line["is_error"]:
            return "error"
        if self._settings.on_overflow == "exclude" and line.get("stop") == StopReason.CONTEXT_OVERFLOW:
            return "overflow"
        if not known.question.objectives:
            return "no_gold"
        return None if known.can_match else "unmatchable_gold"


def _question(line: Mapping[str, Any]) -> Question:
    try:
        gold = None if line["gold"] is None else as_gold(line["gold"])
    except ValueError as error:
        raise UserError(f"question {line['question_id']!r}: unusable gold: {error}") from None
    return _Question(line["question_id"], str(line.get("question") or ""), gold)
