"""Which notes are shown to be read."""

from __future__ import annotations

from mempo.diagnose.examples import MAX_CHARS, examples
from mempo.diagnose.notes import notes_of
from tests.diagnose.build import batch, rollout, turn


def test_one_of_each_kind() -> None:
    made = batch(
        [
            rollout(turn(said="Paris"), turn("Paris", r=0.9, advantage=-1.0), turn("Rome", r=0.2, advantage=2.0)),
            rollout(turn(said="Paris"), turn("none", r=0.1, advantage=0.0), turn("NONE", r=0.5, advantage=0.1)),
        ]
    )
    found = {example["kind"]: example for example in examples(notes_of(made))}
    assert list(found) == [
        "highest advantage",
        "lowest advantage",
        "facts that no observation held",
        "an answer noted and lost again",
        "a copy of the note before",
    ]
    assert (found["highest advantage"]["note"], found["lowest advantage"]["note"]) == ("Rome", "Paris")
    assert found["facts that no observation held"]["detail"] == "rome"
    assert (found["an answer noted and lost again"]["note"], found["an answer noted and lost again"]["turn"]) == (
        "Rome",
        3,
    )
    assert found["a copy of the note before"]["before"] == "none"


def test_r_stands_in_for_advantages_and_long_notes_are_cut() -> None:
    made = batch([rollout(turn(), turn("x" * 2000, r=0.9)), rollout(turn(), turn("y", r=0.1))], advantages="none")
    high, low = examples(notes_of(made))
    assert (high["kind"], len(high["note"])) == ("highest r", MAX_CHARS + 1)
    assert (low["kind"], low["note"], low["advantage"]) == ("lowest r", "y", None)
    assert examples([]) == []
