"""Rollouts and questions on their way between processes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from mempo.cluster.questions import question_json, question_of, write_questions
from mempo.cluster.rollouts import RowKey, dealt, decode_rollout, encode_rollout, whole_group
from mempo.config.rollout import DecodingSettings
from mempo.rollout.agent import Job, rollout
from mempo.rollout.protocol import TurnGrammar
from mempo.rollout.question import Question
from mempo.rollout.trajectory import StopReason, Trajectory
from tests import tiny

TOKENIZER = tiny.make_tokenizer(tags="added")
QUESTION = Question("q1", 'Which "city"?\u2028 <mem>', (("Paris", "Parigi"), ("Yen",)), "Paris; Yen", {"level": "hard"})


def played(texts: list[str], context: str = "memory") -> Trajectory:
    agent = tiny.make_agent(TOKENIZER, context)
    return asyncio.run(
        rollout(agent, tiny.Scripted(TOKENIZER, texts), Job(QUESTION, 3, ("seed",)), DecodingSettings(temperature=0.7))
    )


@pytest.mark.parametrize("context", ["memory", "full"])
def test_a_rollout_comes_back_as_it_was_but_for_the_precision_of_log_probs(context: str) -> None:
    sent = played(
        [
            "<mem>first</mem><think>so</think><search>capital</search>",
            "<mem>then</mem><think>a",
            "<mem>at last</mem><think>b</think><answer>Paris; Yen</answer>",
        ],
        context,
    )
    back = decode_rollout(encode_rollout(sent), TOKENIZER, TurnGrammar())
    assert len(back.turns) == len(sent.turns) == 3
    for ours, theirs in zip(back.turns, sent.turns, strict=True):
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-6)
        for name in (
            "prompt_ids",
            "generated_ids",
            "note_span",
            "note_ids",
            "action_ids",
            "observation",
            "temperature",
        ):
            assert getattr(ours, name) == getattr(theirs, name)
        assert (ours.stop, ours.parsed) == (theirs.stop, theirs.parsed)
    assert (back.question_ids, back.answer, back.stop, back.rollout) == (sent.question_ids, "Paris; Yen", sent.stop, 3)


def test_a_failed_rollout_comes_back_with_its_cause() -> None:
    sent = Trajectory("q1", 0, (1, 2), (), StopReason.SAMPLER_ERROR, error="the server said: ∞ </mem>")
    assert decode_rollout(encode_rollout(sent), TOKENIZER, TurnGrammar()) == sent


@pytest.mark.parametrize(
    "question",
    [QUESTION, Question("q2", "?", "Rome"), Question("q3", "?", ("a", "b")), Question("q4", "no gold", None)],
    ids=lambda question: question.id,
)
def test_a_question_comes_back_as_it_was(question: Question) -> None:
    assert question_of(question_json(question)) == question


def test_questions_stand_in_a_parquet_file_that_verl_reads(tmp_path: Path) -> None:
    write_questions(tmp_path / "q.parquet", [QUESTION], "cities")
    (row,) = pq.read_table(tmp_path / "q.parquet").to_pylist()
    assert row["prompt"] == [{"role": "user", "content": QUESTION.text}]
    assert (row["data_source"], row["agent_name"], row["extra_info"]["index"]) == ("cities", "mempo", 0)
    assert question_of(row["extra_info"]["question"]) == QUESTION


def test_a_row_key_may_hold_underscores() -> None:
    assert RowKey.of("a_b_2_11") == RowKey("a_b", 2, 11)


def test_a_rollout_that_never_arrived_is_there_as_a_failed_one() -> None:
    here = Trajectory("q1", 1, (1,), (), StopReason.CONTEXT_OVERFLOW)
    group = whole_group("uid", QUESTION, {1: here}, size=2)
    assert group.trajectories[1] is here
    assert group.trajectories[0].is_error
    questions, trajectories = dealt([group, whole_group("other", QUESTION, {}, size=2)])
    assert [trajectory.is_error for trajectory in trajectories] == [True, False, True, True]
    assert questions == [QUESTION] * 4


def test_a_session_outside_the_group_is_refused() -> None:
    here = Trajectory("q1", 2, (1,), (), StopReason.CONTEXT_OVERFLOW)
    with pytest.raises(ValueError, match=r"sessions \[2\] in a group of 2"):
        whole_group("uid", QUESTION, {2: here}, size=2)
