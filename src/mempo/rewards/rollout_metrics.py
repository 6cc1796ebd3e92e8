"""What is reported about a rollout, and about many: the same metrics in training and evaluation."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mempo.rewards.memory import NoteScore
from mempo.rewards.outcome import AnswerScore, OutcomeScore
from mempo.rollout.protocol import FORMAT_RULES, NoteStatus, ParseOutcome
from mempo.rollout.question import Question
from mempo.rollout.trajectory import StopReason, Trajectory

Facts = Mapping[str, Any]
ANSWER_METRICS = ("em", "f1", "sub_em", "mean_em", "mean_f1")
OBJECTIVE_METRICS = ("objective_em", "objective_f1", "objective_sub_em")
TOKENS = ("generated_tokens", "peak_context_tokens", "total_tokens", "processed_tokens")


def rollout_record(
    question: Question, trajectory: Trajectory, outcome: OutcomeScore, notes: Sequence[NoteScore] = ()
) -> dict[str, Any]:
    """Everything that is worth a line in the rollout file, tokens apart."""
    kinds = Counter(turn.parsed.action.kind for turn in trajectory.turns if turn.parsed.action)
    answer = outcome.answer
    return {
        "question": question.text,
        "gold": question.gold,
        **({} if question.probe is None else {"probe": question.probe}),
        **({"aug_answer": question.meta["aug_answer"]} if question.meta.get("aug_answer") else {}),
        "objectives": len(question.objectives),
        "score": outcome.score,
        "unscored": outcome.reason,
        **answer_record(answer),
        "format_ok": outcome.format_ok,
        "violations": dict(outcome.violations),
        "is_error": trajectory.is_error,
        "tool_errors": trajectory.tool_errors,
        "num_turns": len(trajectory.turns),
        "actions": dict(kinds),
        "outcomes": dict(Counter(str(turn.parsed.outcome) for turn in trajectory.turns)),
        # The first turn has nothing to note, so it says nothing about note taking.
        "note_statuses": dict(Counter(str(turn.parsed.note_status) for turn in trajectory.turns[1:])),
        "note_tokens": [len(turn.note_ids) for turn in trajectory.turns if turn.note_ids is not None],
        "notes": [dataclasses.asdict(n) for n in notes],
        **{name: getattr(trajectory, name) for name in TOKENS},
    }


def answer_record(answer: AnswerScore | None) -> dict[str, Any]:
    """The metrics of an answer, of the whole (`em` …) and by objective (`objective_em` … `[objectives]`); None where
    there is no gold to compare with."""
    if answer is None:
        return dict.fromkeys((*ANSWER_METRICS, *OBJECTIVE_METRICS))
    by_objective = (answer.per_objective_em, answer.per_objective_f1, answer.per_objective_sub_em)
    return {
        **{name: getattr(answer, name) for name in ANSWER_METRICS},
        **dict(zip(OBJECTIVE_METRICS, map(list, by_objective), strict=True)),
    }


def counts(line: Facts) -> bool:
    """Whether a saved rollout enters averages. One that failed for infrastructure reasons, or that has no score (an own
    reward said None, or an overflow is excluded), enters none: it is counted under its kind.

    A question without a gold answer is no such case: all that is unknown about its rollouts is how right they are, and
    of all of them alike, so an evaluation still reports what they cost. Lines that tell no score at all are predictions
    of another program.
    """
    if line.get("is_error"):
        return False
    if line.get("score", 0.0) is not None:
        return True
    return line["unscored"] == "no_gold" if line.get("unscored") else line.get("gold") is None


def unscored(line: Facts) -> bool:
    """Infrastructure held, and yet the rollout does not count."""
    return not counts(line) and not line.get("is_error")


def known(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """Metrics that have a value."""
    return {name: value for name, value in metrics.items() if value is not None}


def mean(values: Iterable[float | None]) -> float | None:
    """Mean of what is known; None when nothing is."""
    found = [value for value in values if value is not None]
    return sum(found) / len(found) if found else None


def aggregate(
    facts: Sequence[Facts], stops: Sequence[StopReason], counted: Sequence[bool] | None = None
) -> dict[str, float | None]:
    """Metrics over many rollouts. Those that do not count (see `counts`; `counted` `[rollouts]` takes its place) are
    counted as `errors` or `unscored`, and enter nothing else."""
    counted = [counts(f) for f in facts] if counted is None else counted
    sound = [f for f, counts_too in zip(facts, counted, strict=True) if counts_too]
    left_out = [f for f, counts_too in zip(facts, counted, strict=True) if not (counts_too or f["is_error"])]
    notes = [n for f in sound for n in f["notes"]]
    note_tokens = [n for f in sound for n in f["note_tokens"]]
    out: dict[str, float | None] = {
        "rollouts": float(len(facts)),
        "errors": float(sum(bool(f["is_error"]) for f in facts)),
        "unscored": float(len(left_out)),
        "tool_errors": float(sum(f["tool_errors"] for f in facts)),
        **{name: mean(f[name] for f in sound) for name in ("score", *ANSWER_METRICS)},
        "format_ok": mean(float(f["format_ok"]) for f in sound),
        "turns": mean(f["num_turns"] for f in sound),
        "searches": mean(f["actions"].get("search", 0) for f in sound),
        "no_search": mean(float(not f["actions"].get("search")) for f in sound),
        "note_tokens": mean(note_tokens),
        "note_tokens_max": float(max(note_tokens)) if note_tokens else None,
        **{name: mean(f[name] for f in sound) for name in TOKENS},
    }
    for reason, count in Counter(f.get("unscored") for f in left_out).items():
        out[f"unscored/{reason or 'unknown'}"] = float(count)
    told = [stop for stop, counts_too in zip(stops, counted, strict=True) if counts_too or stop.is_infrastructure]
    for reason in StopReason:
        out[f"stop/{reason}"] = float(sum(stop == reason for stop in told))
    for rule in FORMAT_RULES:
        out[f"format/{rule}"] = float(sum(rule in f["violations"] for f in sound))
    for outcome in ParseOutcome:
        out[f"action/{outcome}"] = float(sum(f["outcomes"].get(outcome, 0) for f in sound))
    for status in NoteStatus:
        name = "written" if status is NoteStatus.OK else status.value
        out[f"note/{name}"] = float(sum(f["note_statuses"].get(status, 0) for f in sound))
    out["note/scored"] = float(sum(n["r"] is not None for n in notes))
    for reason, count in Counter(n["reason"] for n in notes if n["reason"]).items():
        out[f"note/no_signal/{reason}"] = float(count)
    kept, gold = sum(n["kept_mem"] for n in notes), sum(n["gold_tokens"] for n in notes)
    out["memory/gold_kept"] = kept / gold if gold else None
    for name in ("p_mem", "p_mem_raw", "p_baseline", "p_baseline_raw", "r"):
        out[f"memory/{name}"] = mean(n[name] for n in notes)
        for turn in sorted({n["turn"] for n in notes}):
            value = mean(n[name] for n in notes if n["turn"] == turn)
            if value is not None:
                out[f"memory/{name}/turn_{turn + 1}"] = value
    return out
