"""Turns, rollouts and the rows made of them: lengths are checked, ids are the sampled ones, no turn is lost."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from mempo.rollout.protocol import TurnGrammar, parse_turn
from mempo.rollout.trajectory import (
    GenerationStop,
    Observation,
    ObservationPart,
    Row,
    Segment,
    StopReason,
    Trajectory,
    Turn,
    rows_of,
)

GRAMMAR = TurnGrammar()
QUESTION = (1, 2, 3)
EOS = 0


def make_turn(index: int, prompt: tuple[int, ...], generated: tuple[int, ...], **changes: Any) -> Turn:
    fields: dict[str, Any] = {
        "index": index,
        "prompt_ids": prompt,
        "generated_ids": generated,
        "logprobs": tuple(-1.0 for _ in generated),
        "stop": GenerationStop.STOP_STRING,
        "parsed": parse_turn("<think>t</think><search>q</search>", index, GRAMMAR),
    }
    return Turn(**{**fields, **changes})


def make_trajectory(*turns: Turn, stop: StopReason = StopReason.TURN_LIMIT, **changes: Any) -> Trajectory:
    return Trajectory("q", 0, QUESTION, turns, stop, **changes)


def seen(*ids: int) -> Observation:
    return Observation((ObservationPart(ids),))


# --- lengths -------------------------------------------------------------------------------------------------------


def test_a_missing_logprob_is_an_error_that_names_the_turn() -> None:
    with pytest.raises(ValueError, match="turn 3: 2 generated ids but 1 log-probs"):
        make_turn(3, QUESTION, (5, 6), logprobs=(-1.0,))


@pytest.mark.parametrize("span", [(0, 4), (2, 2), (-1, 2), (3, 2)])
def test_a_note_span_outside_the_turn_is_an_error_that_names_the_turn(span: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="turn 1: note_span"):
        make_turn(1, QUESTION, (5, 6, 7), note_span=span)


def test_note_ids_and_note_status_must_agree() -> None:
    with pytest.raises(ValueError, match="turn 1: note_ids"):
        make_turn(1, QUESTION, (5, 6), note_ids=(5,))
    closed = parse_turn("<mem>n</mem><think>t</think><search>q</search>", 1, GRAMMAR)
    with pytest.raises(ValueError, match="turn 1: note_ids"):
        make_turn(1, QUESTION, (5, 6), parsed=closed)
    assert make_turn(1, QUESTION, (5, 6), parsed=closed, note_ids=(5,)).note_ids == (5,)


def test_turns_out_of_order_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"numbered \[0, 2\]"):
        make_trajectory(make_turn(0, QUESTION, (5,)), make_turn(2, QUESTION, (6,)))


def test_an_answer_without_a_model_call_is_an_error_that_says_where_to_look() -> None:
    with pytest.raises(ValueError, match="no model call was recorded; look at the agent loop"):
        make_trajectory(stop=StopReason.ANSWERED, answer="Paris")


def test_a_rollout_may_end_before_its_first_turn() -> None:
    empty = make_trajectory(stop=StopReason.CONTEXT_OVERFLOW)
    assert rows_of(empty) == []
    assert empty.peak_context_tokens == 0


# --- rows ----------------------------------------------------------------------------------------------------------


def test_a_full_history_is_one_row() -> None:
    first = make_turn(0, QUESTION, (5, 6), observation=seen(90, 91))
    second = make_turn(1, (*QUESTION, 5, 6, 90, 91), (7, EOS), observation=seen(92))
    third = make_turn(2, (*QUESTION, 5, 6, 90, 91, 7, EOS, 92), (8, 9, 10))
    (row,) = rows_of(make_trajectory(first, second, third), index=4)
    assert row.trajectory == 4
    assert row.ids == (1, 2, 3, 5, 6, 90, 91, 7, EOS, 92, 8, 9, 10)
    assert [row.ids[s.start : s.stop] for s in row.segments] == [(5, 6), (7, EOS), (8, 9, 10)]
    assert row.generated_tokens == 7


def test_a_rebuilt_context_is_a_row_per_turn() -> None:
    first = make_turn(0, QUESTION, (5, 6))
    second = make_turn(1, (*QUESTION, 6, 90), (7,))
    third = make_turn(2, (*QUESTION, 7, 91), (8, 9))
    rows = rows_of(make_trajectory(first, second, third))
    assert [row.ids for row in rows] == [(1, 2, 3, 5, 6), (1, 2, 3, 6, 90, 7), (1, 2, 3, 7, 91, 8, 9)]
    assert [[s.turn for s in row.segments] for row in rows] == [[0], [1], [2]]


def test_a_prompt_that_lost_one_token_of_the_history_begins_a_row() -> None:
    first = make_turn(0, QUESTION, (5, 6))
    for prompt in ((*QUESTION, 5, 90), (*QUESTION, 5), (1, 2, 5, 6, 90)):
        assert len(rows_of(make_trajectory(first, make_turn(1, prompt, (7,))))) == 2


def test_turns_of_another_temperature_do_not_share_a_row() -> None:
    first = make_turn(0, QUESTION, (5,))
    second = make_turn(1, (*QUESTION, 5, 90), (7,), temperature=0.5)
    assert [row.temperature for row in rows_of(make_trajectory(first, second))] == [1.0, 0.5]


def test_forced_ids_are_context_in_a_row() -> None:
    turn = make_turn(0, QUESTION, (5, 6), forced_ids=(80, 81))
    assert turn.own_ids == (80, 81, 5, 6)
    (row,) = rows_of(make_trajectory(turn))
    assert row.ids == (1, 2, 3, 80, 81, 5, 6)
    assert row.segments == (Segment(0, 5, 7),)


def test_a_turn_that_wrote_nothing_keeps_its_place() -> None:
    rows = rows_of(make_trajectory(make_turn(0, QUESTION, ()), make_turn(1, (*QUESTION, 90), (7,))))
    assert sum(row.generated_tokens for row in rows) == 1
    assert [s.turn for row in rows for s in row.segments] == [0, 1]


def test_values_are_spread_over_the_sampled_tokens_alone() -> None:
    first = make_turn(0, QUESTION, (5, 6), observation=seen(90))
    second = make_turn(1, (*QUESTION, 5, 6, 90), (7,))
    (row,) = rows_of(make_trajectory(first, second))
    assert row.spread({0: [0.5, 0.6], 1: [0.7]}) == [0, 0, 0, 0.5, 0.6, 0, 0.7]
    with pytest.raises(ValueError, match="turn 1: 2 values for 1 generated tokens"):
        row.spread({0: [0.5, 0.6], 1: [0.7, 0.8]})


@pytest.mark.parametrize("segment", [Segment(0, 0, 2), Segment(0, 2, 9), Segment(0, 3, 2)])
def test_a_segment_must_lie_in_its_row_behind_a_token(segment: Segment) -> None:
    with pytest.raises(ValueError, match="turn 0: segment"):
        Row(0, (1, 2, 3), (segment,))


# --- measures ------------------------------------------------------------------------------------------------------


def test_token_counts_of_a_rollout_by_hand() -> None:
    first = make_turn(0, QUESTION, (5, 6), observation=seen(90, 91))
    second = make_turn(1, (*QUESTION, 6, 90, 91), (7, 8), forced_ids=(80,))
    rollout = make_trajectory(first, second)
    assert rollout.generated_tokens == 4
    assert rollout.peak_context_tokens == 6 + 3
    assert rollout.total_tokens == 3 + 2 + 2 + 3, "question, own tokens, observations, each once"
    assert rollout.processed_tokens == 5 + 9


def test_infrastructure_failures_keep_a_rollout_out_of_statistics() -> None:
    sound = make_turn(0, QUESTION, (5,))
    failed = dataclasses.replace(sound, tool_error="503")
    assert not make_trajectory(sound).is_error
    assert make_trajectory(failed).is_error, "one failed call already tells nothing about the policy"
    assert make_trajectory(sound, stop=StopReason.SAMPLER_ERROR).is_error
    assert make_trajectory(sound, stop=StopReason.TOOL_ERROR).is_error
    spoiled = {StopReason.TOOL_ERROR, StopReason.SAMPLER_ERROR}
    assert {reason for reason in StopReason if reason.is_infrastructure} == spoiled
