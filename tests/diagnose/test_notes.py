"""One note at a time: facts from nowhere, facts dropped, answers kept and lost again, copies and templates."""

from __future__ import annotations

import pytest

from mempo.diagnose.notes import askable, notes_of, text_of
from mempo.diagnose.summary import by_turn, summary
from tests.diagnose.build import batch, rollout, turn

PLAYED = rollout(
    turn(said="Paris is the capital of France, on the Seine."),
    turn("capital of France: Paris, on the Seine", said="東京 (Tokyo) is in Japan."),
    turn("capital of Japan: Tokyo, near Osaka", said="nothing"),
    turn("Paris, Kyoto"),
)


def test_every_note_of_a_rollout_by_hand() -> None:
    notes = notes_of(batch([PLAYED]))
    assert [note.turn for note in notes] == [2, 3, 4]
    first, second, third = (note.text for note in notes)
    assert (first.facts, first.unheld) == (("paris", "seine"), ())
    assert (first.gold_seen, first.gold_kept, first.gold_noted_before) == (1, 1, 0)

    assert second.facts == ("tokyo", "osaka")
    assert second.unheld == ("osaka",)
    assert second.held_before == second.dropped == ("paris", "seine")
    assert (second.gold_seen, second.gold_kept, second.gold_noted_before, second.gold_lost) == (2, 1, 1, 1)

    assert third.unheld == ("kyoto",)
    assert third.held_before == third.dropped == ("tokyo",)  # Osaka was in no observation, so it cannot be lost
    assert (third.gold_seen, third.gold_kept, third.gold_noted_before, third.gold_lost) == (2, 1, 2, 1)
    assert [note.completeness for note in notes] == [1.0, 0.5, 0.5]


def test_shares_over_notes_by_hand() -> None:
    notes = notes_of(batch([PLAYED]))
    found = summary(notes)
    assert found["facts_per_note"] == 2.0
    assert found["unheld"] == pytest.approx(2 / 6)
    assert found["dropped"] == 1.0
    assert found["gold_kept"] == pytest.approx(3 / 5)
    assert found["gold_lost"] == pytest.approx(2 / 3)
    assert (found["gold_unseen"], found["factless"]) == (0.0, 0.0)
    rows = by_turn(batch([PLAYED]), notes)
    assert [(row["turn"], row["gold_kept"]) for row in rows] == [(2, 1.0), (3, 0.5), (4, 0.5)]


def test_only_what_was_seen_before_the_turn_counts() -> None:
    (note,) = notes_of(batch([rollout(turn(said="nothing"), turn("Paris", said="Paris"))]))
    assert note.text.unheld == ("paris",)
    assert (note.text.gold_seen, note.text.gold_unseen, note.completeness) == (0, 1, None)
    assert summary([note])["gold_unseen"] == 1.0
    assert summary([note])["gold_kept"] is None


def test_an_answer_that_the_question_names_says_nothing() -> None:
    made = rollout(turn(said="Yes"), turn("Yes"), question="yes or no?", gold=(("yes",), ("Rome",)))
    assert askable(made) == [("Rome",)]
    assert text_of(made, made.turns[1]).gold_seen == 0


def test_an_alias_of_another_script_and_a_note_without_facts() -> None:
    made = rollout(turn(said="首都は東京"), turn("答えは東京"), turn("still nothing"))
    first, second = notes_of(batch([made]))
    assert (first.text.gold_seen, first.text.gold_kept) == (1, 1)
    assert second.text.gold_lost == 1
    assert summary([second])["factless"] == 1.0
    assert summary([second])["unheld"] is None


def test_no_notes() -> None:
    nothing = summary([])
    assert nothing["notes"] == nothing["facts"] == 0
    assert {nothing[name] for name in ("unheld", "gold_kept", "factless", "r", "r_std", "novelty")} == {None}


def noted(*notes: str | None, question: str = "q") -> object:
    return rollout(*(turn(note) for note in (None, *notes)), question=question)


def test_copies_and_novelty_are_against_the_note_before() -> None:
    made = batch([noted("Paris Seine", "PARIS  seine", "Paris Tokyo Rome", None, "Rome")])  # type: ignore[list-item]
    notes = notes_of(made)
    assert [note.turn for note in notes] == [2, 3, 4, 6]
    assert [note.text.copy for note in notes] == [None, 1.0, 0.0, 0.0]
    assert [note.text.novelty for note in notes] == [None, 0.0, pytest.approx(2 / 3), 0.0]
    whole = summary(notes)
    assert (whole["copies"], whole["novelty"]) == (pytest.approx(1 / 3), pytest.approx(2 / 9))
    assert whole["templates"] is None  # one question cannot share with another


def test_the_first_turns_note_is_a_note_before() -> None:
    assert summary(notes_of(batch([rollout(turn("Paris"), turn("Paris"))])))["copies"] == 1.0


def test_templates_are_notes_of_other_questions_too() -> None:
    a = [noted("I know enough", "Paris", question="a"), noted("I know enough", "Paris", question="a")]
    b = [noted("i know enough", "Rome", question="b")]
    made = batch(a, b)  # type: ignore[arg-type]
    assert [row["templates"] for row in by_turn(made, notes_of(made))] == [1.0, 0.0]
    assert summary(notes_of(made))["templates"] == 0.5
    same = [noted("Paris", question="a")]  # a question that comes twice is not another question
    assert summary(notes_of(batch(same, same)))["templates"] == 0.0  # type: ignore[arg-type]
