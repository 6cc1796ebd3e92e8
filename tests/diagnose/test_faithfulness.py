"""Facts from nowhere, facts dropped, answers kept and lost again."""

from __future__ import annotations

import pytest

from mempo.diagnose.faithfulness import askable, faith_of, faithfulness, faithfulness_by_turn, note_faith
from tests.diagnose.build import batch, rollout, turn

PLAYED = rollout(
    turn(said="Paris is the capital of France, on the Seine."),
    turn("capital of France: Paris, on the Seine", said="東京 (Tokyo) is in Japan."),
    turn("capital of Japan: Tokyo, near Osaka", said="nothing"),
    turn("Paris, Kyoto"),
)


def test_every_note_of_a_rollout_by_hand() -> None:
    first, second, third = faith_of(batch([PLAYED]))
    assert (first.turn, first.facts, first.unheld) == (2, ("paris", "seine"), ())
    assert (first.gold_seen, first.gold_kept, first.gold_noted_before) == (1, 1, 0)
    assert (first.complete, first.completeness) == (True, 1.0)

    assert second.facts == ("tokyo", "osaka")
    assert second.unheld == ("osaka",)
    assert second.held_before == second.dropped == ("paris", "seine")
    assert (second.gold_seen, second.gold_kept, second.gold_noted_before, second.gold_lost) == (2, 1, 1, 1)
    assert second.completeness == 0.5

    assert third.unheld == ("kyoto",)
    assert third.held_before == third.dropped == ("tokyo",)  # Osaka was never held, so it cannot be lost
    assert (third.gold_seen, third.gold_kept, third.gold_noted_before, third.gold_lost) == (2, 1, 2, 1)


def test_shares_over_notes_by_hand() -> None:
    found = faithfulness(faith_of(batch([PLAYED])))
    assert found.facts_per_note == 2.0
    assert found.unheld == pytest.approx(2 / 6)
    assert found.dropped == 1.0
    assert found.gold_kept == pytest.approx(3 / 5)
    assert found.gold_lost == pytest.approx(2 / 3)
    assert (found.gold_unseen, found.factless) == (0.0, 0.0)
    assert [row["turn"] for row in faithfulness_by_turn(faith_of(batch([PLAYED])))] == [2, 3, 4]
    assert faithfulness_by_turn(faith_of(batch([PLAYED])))[0]["gold_kept"] == 1.0


def test_only_what_was_seen_before_the_turn_counts() -> None:
    made = rollout(turn(said="nothing"), turn("Paris", said="Paris"))
    (note,) = faith_of(batch([made]))
    assert note.unheld == ("paris",)
    assert (note.gold_seen, note.gold_unseen, note.complete) == (0, 1, None)
    assert faithfulness([note]).gold_unseen == 1.0
    assert faithfulness([note]).gold_kept is None


def test_an_answer_that_the_question_names_tells_nothing() -> None:
    made = rollout(turn(said="Yes"), turn("Yes"), question="yes or no?", gold=(("yes",), ("Rome",)))
    assert askable(made) == [("Rome",)]
    assert note_faith(made, made.turns[1]).gold_seen == 0


def test_an_alias_of_another_script_and_a_note_without_facts() -> None:
    made = rollout(turn(said="首都は東京"), turn("答えは東京"), turn("still nothing"))
    first, second = faith_of(batch([made]))
    assert (first.gold_seen, first.gold_kept) == (1, 1)
    assert second.gold_lost == 1
    assert faithfulness([second]).factless == 1.0
    assert faithfulness([second]).unheld is None


def test_no_notes() -> None:
    nothing = faithfulness([])
    assert (nothing.notes, nothing.unheld, nothing.gold_kept, nothing.factless) == (0, None, None, None)
