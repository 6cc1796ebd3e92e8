"""Metrics of many rollouts: what infrastructure spoiled stands apart, and what is not known is not 0."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from mempo.config.rewards import OutcomeSettings
from mempo.rewards.memory import NoteScore
from mempo.rewards.outcome import outcome_score
from mempo.rewards.rollout_metrics import aggregate, mean, rollout_record
from mempo.rollout.interfaces import ToolErrorKind, ToolResult
from mempo.rollout.question import Question
from mempo.rollout.trajectory import StopReason, Trajectory
from mempo.storage.files import dump_line
from tests.train.fakes import NOTED_ANSWER, NOTED_SEARCH, SEARCH, TOKENIZER, played, questions

QUESTION = questions(1)[0]
FAILING = ToolResult(notice="503", error=ToolErrorKind.UNAVAILABLE)


def recorded(trajectory: Trajectory, *notes: NoteScore, question: Question = QUESTION) -> dict[str, Any]:
    return rollout_record(question, trajectory, outcome_score(question, trajectory, OutcomeSettings()), notes)


def measured(*rollouts: tuple[Trajectory, list[NoteScore]]) -> dict[str, float | None]:
    return aggregate([recorded(t, *notes) for t, notes in rollouts], [t.stop for t, _ in rollouts])


def note(turn: int, p_mem: float, p_baseline: float | None = None, kept: int = 2) -> NoteScore:
    r = p_mem - (p_baseline or 0.0)
    return NoteScore(turn, p_mem, p_baseline, r, 2, kept, kept, p_mem, p_baseline)


SILENT = NoteScore(2, None, None, None, 2, 0, 0, None, None, "empty_choice")

# --- one rollout ---------------------------------------------------------------------------------------------------


def test_the_record_of_a_rollout() -> None:
    found = recorded(played(QUESTION, 3))
    assert (found["score"], found["em"], found["f1"], found["format_ok"]) == (1, 1, 1, True)
    assert found["num_turns"] == 3
    assert found["actions"] == {"search": 2, "answer": 1}
    assert found["note_statuses"] == {"ok": 2}  # the first turn has nothing to note
    assert found["note_tokens"] == [len(TOKENIZER.encode_trusted("<mem>n</mem>"))] * 2
    assert found["violations"] == {}
    dump_line(found)  # it can be written


def test_lengths_leave_out_what_a_tool_said() -> None:
    short, long = (played(QUESTION, 3, context="full", result=ToolResult(passages=("no " * n,))) for n in (1, 90))
    spoken = sum(len(TOKENIZER.encode_trusted(text)) for text in (SEARCH, NOTED_SEARCH, NOTED_ANSWER))
    assert recorded(short)["generated_tokens"] == recorded(long)["generated_tokens"] == spoken
    assert recorded(long)["total_tokens"] > recorded(short)["total_tokens"] + 2 * 89
    assert (
        recorded(long)["peak_context_tokens"] == recorded(long)["total_tokens"]
    )  # a full history: its last step is all


def test_a_short_context_peaks_below_its_total() -> None:
    page = ToolResult(passages=("no " * 60,))
    found = recorded(played(QUESTION, 4, result=page))
    assert found["peak_context_tokens"] < found["total_tokens"] < found["processed_tokens"]


def test_without_gold_there_is_no_answer_measure() -> None:
    open_question = dataclasses.replace(QUESTION, gold=None)
    found = recorded(played(QUESTION, 1), question=open_question)
    assert [found[name] for name in ("score", "em", "f1", "sub_em", "mean_em", "mean_f1")] == [None] * 6
    assert found["objectives"] == 0


# --- many ----------------------------------------------------------------------------------------------------------


def test_the_mean_is_of_what_is_known() -> None:
    assert mean([1.0, None, 0.0]) == 0.5
    assert mean([None]) is None
    assert mean([]) is None
    assert mean([0.0]) == 0


def test_spoiled_rollouts_are_counted_and_enter_nothing_else() -> None:
    good, wrong = played(QUESTION, 1), played(QUESTION, 1, answer="Rome")
    broken = played(QUESTION, 7, result=FAILING, max_tool_errors=9)
    clean = measured((good, []), (wrong, []))
    spoiled = measured((good, []), (broken, [note(1, 0.9)]), (wrong, []))
    assert (spoiled["rollouts"], spoiled["errors"], spoiled["tool_errors"]) == (3, 1, 6)
    counts = {"rollouts", "errors", "tool_errors", "stop/answered"}
    assert {k: v for k, v in spoiled.items() if k not in counts} == {k: v for k, v in clean.items() if k not in counts}
    assert clean["score"] == 0.5


def test_nothing_but_errors_has_no_score() -> None:
    found = measured((played(QUESTION, 3, result=FAILING), []))
    assert found["errors"] == 1
    assert found["stop/tool_error"] == 1
    for name in ("score", "em", "turns", "searches", "note_tokens", "note_tokens_max", "total_tokens"):
        assert found[name] is None, name


def test_no_rollouts_at_all() -> None:
    found = aggregate([], [])
    assert found["rollouts"] == 0
    assert found["score"] is None
    assert found["memory/gold_kept"] is None


def test_a_rollout_without_a_score_is_not_a_wrong_one() -> None:
    scored, silent = recorded(played(QUESTION, 1)), {**recorded(played(QUESTION, 1)), "score": None, "em": None}
    found = aggregate([scored, silent], [StopReason.ANSWERED] * 2)
    assert (found["score"], found["em"], found["f1"]) == (1, 1, 1)


def test_searches_are_per_rollout_and_rollouts_without_one_are_told() -> None:
    found = measured((played(QUESTION, 1), []), (played(QUESTION, 4), []))
    assert (found["searches"], found["no_search"], found["turns"]) == (1.5, 0.5, 2.5)


def test_broken_rules_stops_and_notes_are_counted_by_name() -> None:
    bare = played(QUESTION, 2)
    cut = played(QUESTION, 5, max_turns=2)
    found = measured((bare, []), (cut, []))
    assert (found["stop/answered"], found["stop/turn_limit"], found["stop/malformed"]) == (1, 1, 0)
    assert found["format/final_answer"] == 1
    assert found["format/balanced"] == 0
    assert found["format_ok"] == 0.5
    assert (found["note/written"], found["note/missing"]) == (2, 0)


def test_the_memory_signal_is_reported_by_turn() -> None:
    long = played(QUESTION, 4)
    found = measured((long, [note(1, 0.8, 0.5), SILENT]), (long, [note(1, 0.6, 0.3, kept=1), note(2, 0.2, 0.3)]))
    assert found["note/scored"] == 3
    assert found["note/no_signal/empty_choice"] == 1
    assert found["memory/p_mem"] == pytest.approx((0.8 + 0.6 + 0.2) / 3)
    assert found["memory/p_mem/turn_2"] == pytest.approx(0.7)
    assert found["memory/p_mem/turn_3"] == pytest.approx(0.2)
    assert found["memory/r/turn_3"] == pytest.approx(-0.1)
    assert found["memory/p_baseline/turn_2"] == pytest.approx(0.4)
    assert found["memory/gold_kept"] == pytest.approx(5 / 8)


def test_without_a_baseline_p_baseline_is_not_known() -> None:
    found = measured((played(QUESTION, 2), [note(1, 0.0)]))
    assert found["memory/p_baseline"] is None
    assert "memory/p_baseline/turn_2" not in found
    assert found["memory/p_mem"] == 0  # known, and 0
