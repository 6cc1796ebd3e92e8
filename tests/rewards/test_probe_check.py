"""Does the probe tell a right note from a wrong one?"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from mempo.config.rewards import ProbeSettings
from mempo.rewards.probe_check import CheckNotes, ProbeCheck, check_notes, check_probe, note_of_gold
from mempo.rollout.interfaces import ScoreRequest
from mempo.rollout.question import Question
from tests.rewards.test_probe import Chunks

CITIES = [Question(f"q{i}", "?", (city, "alias")) for i, city in enumerate(["Paris", "Rome", "Oslo", "Bern", "Riga"])]
PROMPT = (900, 901)


class Reader:
    """Knows what its context says: P is high when the context's text holds all of the gold answer's characters."""

    def __init__(self, p: Callable[[str, str], float]) -> None:
        self.p = p

    def score(self, requests: Sequence[ScoreRequest], temperature: float = 1.0) -> list[np.ndarray]:
        found = []
        for request in requests:
            context = "".join(map(chr, request.prefix_ids[len(PROMPT) :]))
            gold = "".join(chr(request.continuation_ids[k]) for k in request.which or ())
            found.append(np.full(len(request.which or ()), math.log(self.p(context, gold))))
        return found


class Letters(Chunks):
    """Ids are code points, so that a test can read a context."""

    def encode_mixed(self, pieces: Sequence[tuple[str, bool]]):
        encoded = super().encode_mixed(pieces)
        text = "".join(piece for piece, _ in pieces)
        return dataclasses.replace(encoded, ids=tuple(map(ord, text)))


def notes() -> list[CheckNotes]:
    return check_notes(CITIES, [PROMPT] * 5, [f"capital: {question.gold[0]}" for question in CITIES])  # type: ignore[index]


def test_the_three_notes_of_a_question() -> None:
    first, *_, last = notes()
    assert (first.right, first.one_wrong, first.other) == ("capital: Paris", "capital: Rome", "capital: Rome")
    assert (last.right, last.one_wrong, last.other) == ("capital: Riga", "capital: Paris", "capital: Paris")


def test_of_several_facts_one_is_wrong() -> None:
    two = [Question("a", "?", (("Paris",), ("Rome",))), Question("b", "?", (("Oslo",), ("Bern",)))]
    made = check_notes(two, [PROMPT] * 2, [note_of_gold(question) for question in two])
    assert [(one.right, one.one_wrong) for one in made] == [
        ("Paris\nRome", "Oslo\nRome"),
        ("Oslo\nBern", "Paris\nBern"),
    ]


def test_questions_of_one_answer_give_no_notes() -> None:
    same = [dataclasses.replace(CITIES[0], id=str(i)) for i in range(3)]
    assert check_notes(same, [PROMPT] * 3, ["Paris"] * 3) == []


def test_a_note_without_its_answer_word_for_word_has_no_wrong_fact() -> None:
    made = check_notes(CITIES, [PROMPT] * 5, [f"note {i}" for i in range(5)])
    assert {one.one_wrong for one in made} == {None}
    found = check_probe(made, Letters(1), Reader(lambda c, g: 0.5), ProbeSettings())
    assert (found.p_one_wrong, found.beats_one_wrong) == (None, None)


def test_a_policy_that_reads_notes_separates_them() -> None:
    reader = Reader(lambda context, gold: 0.8 if gold in context else 0.1)
    found = check_probe(notes(), Letters(1), reader, ProbeSettings())
    assert (found.questions, found.p_right, found.p_one_wrong, found.p_other) == (
        5,
        pytest.approx(0.8),
        pytest.approx(0.1),
        pytest.approx(0.1),
    )
    assert (found.beats_one_wrong, found.beats_other, found.separates) == (1.0, 1.0, True)
    assert found.report.startswith("probe check on 5 questions: P(answer) is 0.8 given a right note, 0.1 with one")


def test_a_policy_that_does_not_read_them_is_warned_about_with_the_remedy() -> None:
    found = check_probe(notes(), Letters(1), Reader(lambda context, gold: 0.3), ProbeSettings())
    assert (found.beats_one_wrong, found.separates) == (0.0, False)
    assert found.report.startswith("warning: ")
    for remedy in ("sft.probe_share=", "memory.probe.thought", "rl.memory_signal=false"):
        assert remedy in found.report


def test_one_of_the_two_is_not_enough() -> None:
    assert not ProbeCheck(9, 0.5, 0.5, 0.1, beats_one_wrong=0.0, beats_other=1.0).separates
    assert not ProbeCheck(9, 0.5, 0.1, 0.5, beats_one_wrong=1.0, beats_other=0.0).separates
    assert ProbeCheck(9, 0.5, None, 0.1, beats_one_wrong=None, beats_other=1.0).separates


def test_too_few_questions_say_nothing() -> None:
    found = check_probe(notes()[:3], Letters(1), Reader(lambda context, gold: 0.3), ProbeSettings())
    assert found.separates is None
    assert "only 3 questions" in found.report
    assert check_probe([], Letters(1), Reader(lambda c, g: 0.3), ProbeSettings()).p_right is None


def test_questions_without_gold_are_left_out() -> None:
    blank = dataclasses.replace(notes()[0], question=Question("none", "?", None))
    assert check_probe([blank], Letters(1), Reader(lambda c, g: 0.3), ProbeSettings()).questions == 0
