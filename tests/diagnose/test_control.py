"""The control: which contexts are asked, whose note is lent, and what a policy makes of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest

from mempo.config.rewards import ProbeSettings
from mempo.diagnose.control import ControlNote, ask, control, control_by_turn
from mempo.diagnose.records import Batch, batch_of
from mempo.engine.scorer import LocalScorer, score_naive
from mempo.rollout.interfaces import ScoreRequest
from mempo.rollout.trajectory import Trajectory
from tests.rollout.test_agent import SEARCH
from tests.storage.test_rollouts import TOKENIZER, make
from tests.tiny import tiny_llama

LINE = {"question": "capital of France?", "gold": "Paris", "is_error": False}


class Fixed:
    """P is a function of the context's text."""

    def __init__(self, **p: float) -> None:
        self._p = p
        self.contexts: list[str] = []

    def score(self, requests: Sequence[ScoreRequest], temperature: float = 1.0) -> list[np.ndarray]:
        assert temperature == 1.0
        texts = [TOKENIZER.decode(request.prefix_ids) for request in requests]
        self.contexts += texts
        found = [next((p for part, p in self._p.items() if part in text), 0.01) for text in texts]
        return [np.full(len(r.which or ()), np.log(p)) for r, p in zip(requests, found, strict=True)]


def saying(*notes: str, question: str = "q") -> Trajectory:
    texts = [f"<mem>{note}</mem><think>t</think><search>more</search>" for note in notes]
    made = make("memory", (SEARCH, *texts, "<think>t</think><answer>x</answer>"))
    return dataclasses.replace(made, question_id=question)


def asked(*rollouts: tuple[Trajectory, dict[str, object]]) -> tuple[Batch, list[Trajectory]]:
    trajectories = [trajectory for trajectory, _ in rollouts]
    lines = [{**LINE, **line, "question_id": t.question_id} for t, line in rollouts]
    return batch_of("step-1", trajectories, lines, TOKENIZER, 1), trajectories


TWO = (
    (saying("Paris it is", question="a"), {}),
    (saying("Tokyo", question="b"), {"question": "capital of Japan?", "gold": [["Tokyo", "東京"]]}),
)


def test_four_contexts_a_note_and_what_comes_of_them() -> None:
    made, trajectories = asked(*TWO)
    scorer = Fixed(**{"<mem>Paris it is</mem>": 0.5, "<mem>Tokyo</mem>": 0.4, "<mem></mem>": 0.1})
    notes, left_out = ask(made, trajectories, TOKENIZER, scorer, ProbeSettings(), 10)
    assert left_out == 0
    first, second = notes
    assert (first.question_id, first.turn) == ("a", 2)
    assert (first.note, first.other, first.empty, first.history) == pytest.approx((0.5, 0.4, 0.1, 0.01))
    assert (second.note, second.other, second.empty) == pytest.approx((0.4, 0.5, 0.1))
    assert first.other_tokens == second.note_tokens
    question = TOKENIZER.decode(trajectories[0].question_ids)
    assert f"{question}<mem>Paris it is</mem>" in scorer.contexts
    assert f"{question}<mem>Tokyo</mem>" in scorer.contexts
    assert f"{question}<mem></mem>" in scorer.contexts
    assert all(text.startswith(question) for text in scorer.contexts)
    history = next(text for text in scorer.contexts if "<tool_response>" in text)
    assert "Paris it is" not in history
    assert "capital of France" in history


def test_a_note_that_holds_the_answer_is_not_lent_and_nearness_in_length_decides() -> None:
    rollouts = [
        (saying("one two", question="a"), {}),
        (saying("Paris two", question="b"), {"question": "b?", "gold": "Rome"}),
        (saying("a long note of many words", question="c"), {"question": "c?", "gold": "Rome"}),
        (saying("red blue x", question="d"), {"question": "d?", "gold": "Rome"}),
    ]
    made, trajectories = asked(*rollouts)
    scorer = Fixed(**{"red blue x": 0.7, "Paris two": 0.9, "a long note": 0.8})
    (first, *_), _ = ask(made, trajectories, TOKENIZER, scorer, ProbeSettings(), 1)
    assert first.other == pytest.approx(0.7)


def test_without_another_question_there_is_no_other_note() -> None:
    made, trajectories = asked((saying("x"), {}), (saying("y"), {}))
    notes, _ = ask(made, trajectories, TOKENIZER, Fixed(), ProbeSettings(), 10)
    assert [note.other for note in notes] == [None, None]
    found = control(notes)
    assert (found["other"], found["other_gain"], found["beats_other"]) == (None, None, None)
    assert found["empty_gain"] == pytest.approx(0)


@pytest.mark.parametrize(
    ("line", "window"),
    [
        ({"gold": None}, None),
        ({}, 30),
        ({"notes": [{"turn": 1, "r": 0.5, "gold_tokens": 99}]}, None),  # the run predicted another text
    ],
)
def test_notes_that_cannot_be_asked_about_are_left_out(line: dict[str, object], window: int | None) -> None:
    made, trajectories = asked((saying("x"), line))
    scorer = Fixed()
    assert ask(made, trajectories, TOKENIZER, scorer, ProbeSettings(), 10, window) == ([], 1)
    assert scorer.contexts == []
    nothing = control([], 1)
    assert (nothing["left_out"], nothing["note"]) == (1, None)


def test_a_probe_of_its_own_is_what_is_predicted() -> None:
    made, trajectories = asked((saying("x"), {"gold": "Rome", "probe": "Paris and more"}))
    seen: list[str] = []

    class Spy(Fixed):
        def score(self, requests: Sequence[ScoreRequest], temperature: float = 1.0) -> list[np.ndarray]:
            seen.extend(TOKENIZER.decode(r.continuation_ids) for r in requests)
            return super().score(requests, temperature)

    ask(made, trajectories, TOKENIZER, Spy(), ProbeSettings(), 10)
    assert all("Paris and more" in text for text in seen)


def test_p_on_a_model_is_the_mean_log_prob_of_the_gold_tokens() -> None:
    policy = tiny_llama(TOKENIZER)
    made, trajectories = asked(*TWO)
    notes, _ = ask(made, trajectories, TOKENIZER, LocalScorer(policy), ProbeSettings(), 10)
    trajectory = trajectories[0]
    head = TOKENIZER.encode_trusted(f"\n<think>\n{ProbeSettings().thought}\n</think>\n<answer>\nParis\n</answer>")
    text = TOKENIZER.decode_spans(head)
    span = text.tokens_of(text.text.index("Paris"), text.text.index("Paris") + len("Paris"))
    assert span is not None
    context = trajectory.question_ids + (trajectory.turns[1].note_ids or ())
    (logprobs,) = score_naive(policy, [ScoreRequest(context, head, tuple(range(*span)))])
    assert notes[0].note == pytest.approx(np.exp(logprobs.mean()), rel=1e-4)


def test_means_and_errors_by_hand() -> None:
    notes = [
        ControlNote("a", 2, 0.5, 0.1, 0.2, 0.5, 10, 8),
        ControlNote("a", 3, 0.7, 0.1, 0.2, 0.9, 10, 10),
        ControlNote("b", 2, 0.1, 0.2, 0.0, 0.1, 10, None),
    ]
    found = control(notes, 4)
    assert found["other_gain"] == pytest.approx((0.4 + 0.6 - 0.1) / 3)
    # One mean a question: 0.5 and -0.1; their standard deviation over √2.
    assert found["other_gain_se"] == pytest.approx(np.std([0.5, -0.1], ddof=1) / np.sqrt(2))
    assert found["history_gain"] == pytest.approx(-0.2 / 3)
    assert found["beats_other"] == pytest.approx(2 / 3)
    assert found["other_tokens_off"] == 1.0
    assert control(notes[:2])["other_gain_se"] is None
    rows = control_by_turn(notes)
    assert {turn: row["now_notes"] for turn, row in rows.items()} == {2: 2, 3: 1}
    assert rows[2]["now_note"] == pytest.approx(0.3)
