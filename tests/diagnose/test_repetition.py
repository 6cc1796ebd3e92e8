"""Copies, templates, novelty, and groups that are all alike."""

from __future__ import annotations

import zlib

import pytest

from mempo.diagnose.repetition import compression_ratio, repetition, repetition_by_turn
from tests.diagnose.build import batch, rollout, turn


def noted(*notes: str | None, question: str = "q", queries: tuple[str, ...] = ()) -> object:
    asked = [*queries, *[None] * 9]
    return rollout(*(turn(note, query=asked[i]) for i, note in enumerate((None, *notes))), question=question)


def test_copies_and_novelty_are_against_the_note_before() -> None:
    made = batch([noted("Paris Seine", "PARIS  seine", "Paris Tokyo Rome", None, "Rome")])  # type: ignore[list-item]
    rows = repetition_by_turn(made)
    assert [row.turn for row in rows] == [2, 3, 4, 6]
    assert [row.copies for row in rows] == [None, 1.0, 0.0, 0.0]
    assert [row.novelty for row in rows] == [None, 0.0, pytest.approx(2 / 3), 0.0]
    whole = repetition(made)
    assert (whole.copies, whole.novelty) == (pytest.approx(1 / 3), pytest.approx(2 / 9))
    assert whole.templates is None  # one question cannot share with another


def test_the_first_turns_note_is_a_note_before() -> None:
    made = batch([rollout(turn("Paris"), turn("Paris"))])
    assert repetition(made).copies == 1.0


def test_templates_are_notes_of_other_questions_too() -> None:
    a = [noted("I know enough", "Paris", question="a"), noted("I know enough", "Paris", question="a")]
    b = [noted("i know enough", "Rome", question="b")]
    rows = repetition_by_turn(batch(a, b))  # type: ignore[arg-type]
    assert [row.templates for row in rows] == [1.0, 0.0]
    assert repetition(batch(a, b)).templates == 0.5  # type: ignore[arg-type]


def test_a_question_that_comes_twice_is_not_another_question() -> None:
    same = [noted("Paris", question="a")]
    assert repetition(batch(same, same)).templates == 0.0  # type: ignore[arg-type]


def test_variety_within_a_group() -> None:
    alike = [noted("x", "same", queries=("a", "b")) for _ in range(4)]
    mixed = [noted(str(i), queries=("a",) if i < 2 else ("b",)) for i in range(3)]
    lone = [noted("n")]
    found = repetition(batch(alike, mixed, lone))  # type: ignore[arg-type]
    assert found.distinct_notes == pytest.approx((0 + 1) / 2)  # 1 of 4; 3 of 3; a group of one says nothing
    assert found.distinct_queries == pytest.approx((0 + 1 / 2) / 2)


def test_a_query_that_both_questions_hold_is_no_collapse() -> None:
    a = [noted("n", question="capital of Peru; capital of Chad", queries=("capital of Peru", "help"))]
    b = [noted("n", question="capital of Peru; capital of Mali", queries=("capital of Peru", "help"))]
    assert repetition(batch(a, b)).shared_queries == 0.5  # type: ignore[arg-type]


def test_compression_against_zlib_itself_and_against_the_questions() -> None:
    texts = ["the same note again"] * 20
    data = "\n".join(texts).encode()
    assert compression_ratio(texts) == pytest.approx(len(data) / len(zlib.compress(data, 9)))
    assert compression_ratio([]) is None
    assert compression_ratio(["\ud800"]) is not None  # a lone surrogate
    questions = [f"what is the {n * 7919 % 1000}th of {n * 104729 % 997} things" for n in range(40)]
    mirrored = batch(*([noted(text, question=text)] for text in questions))  # type: ignore[list-item]
    collapsed = batch(*([noted("I know it", question=text)] for text in questions))  # type: ignore[list-item]
    assert repetition(mirrored).compression_across == pytest.approx(1.0)
    assert (repetition(collapsed).compression_across or 0) > 2
    assert repetition(batch([noted("n")])).compression_across is None  # type: ignore[list-item]
