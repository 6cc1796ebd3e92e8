"""Whole batches: which notes are scored, in which contexts, with what reason when not."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from mempo.config.rewards import MemorySettings, ProbeSettings
from mempo.rewards import NoSignal, score_notes
from mempo.rollout.interfaces import ScoreRequest
from mempo.rollout.question import Question
from mempo.rollout.trajectory import StopReason, Trajectory
from tests.rewards.build import QUESTION_IDS, question, trajectory, turn
from tests.rewards.test_probe import Chunks

FULL = MemorySettings(baseline="full")
NONE = MemorySettings()


class FakeScorer:
    """Log-probs by a rule of (context, probe position), so that every context gives its own."""

    def __init__(self, rule: Callable[[tuple[int, ...], int], float] | None = None) -> None:
        self.calls: list[list[ScoreRequest]] = []
        self.rule = rule or (lambda context, k: -random.Random(f"{context}{k}").random() * 3)

    def score(self, requests: Sequence[ScoreRequest], temperature: float = 1.0) -> list[np.ndarray]:
        assert temperature == 1.0
        self.calls.append(list(requests))
        return [np.array([self.rule(r.prefix_ids, k) for k in r.which or ()]) for r in requests]

    @property
    def contexts(self) -> list[tuple[int, ...]]:
        return [request.prefix_ids for call in self.calls for request in call]


def three_turns() -> Trajectory:
    """Turn 0 has a note too: it is never scored."""
    return trajectory(
        turn(0, own=[1, 2, 3], note=(0, 2), seen=[10, 11]),
        turn(1, own=[4, 5, 6, 7], note=(1, 3), forced=2, seen=[12]),
        turn(2, own=[8, 9], note=(0, 1)),
        answer="Paris",
    )


def score(
    rollout: Trajectory, settings: MemorySettings, scorer: FakeScorer | None = None, asked: Question | None = None
):
    [notes] = score_notes([asked or question()], [rollout], Chunks(1), scorer or FakeScorer(), settings)
    return notes


def test_contexts_are_those_of_the_method() -> None:
    scorer = FakeScorer()
    notes = score(three_turns(), FULL, scorer)
    assert [note.turn for note in notes] == [1, 2]
    q1, q2 = QUESTION_IDS
    assert scorer.contexts == [
        (q1, q2, 5, 6),  # the note of turn 1, its forced token included
        (q1, q2, 1, 2, 3, 10, 11),  # everything before turn 1
        (q1, q2, 8),
        (q1, q2, 1, 2, 3, 10, 11, 4, 5, 6, 7, 12),
    ]
    assert len(scorer.calls) == 1


def test_without_baseline_no_pass_over_the_history_is_asked_for() -> None:
    scorer = FakeScorer()
    notes = score(three_turns(), NONE, scorer)
    assert scorer.contexts == [(*QUESTION_IDS, 5, 6), (*QUESTION_IDS, 8)]
    assert all(note.r == note.p_mem and note.p_baseline is None and note.kept_baseline is None for note in notes)


def test_only_the_gold_tokens_are_asked_for() -> None:
    scorer = FakeScorer()
    [first, _] = score(three_turns(), NONE, scorer)
    request = scorer.calls[0][0]
    head = len(f"\n<think>\n{ProbeSettings().thought}\n</think>\n<answer>\n")
    assert request.which == tuple(range(head, head + 5))
    assert len(request.continuation_ids) == head + 5  # what follows the answer cannot matter
    assert first.gold_tokens == first.kept_mem == 5


def test_p_is_the_geometric_mean_over_gold_tokens() -> None:
    head = len(f"\n<think>\n{ProbeSettings().thought}\n</think>\n<answer>\n")
    logprobs = {(9, 9): [-0.1, -0.2, -0.3], (): [-1.0, -2.0, -3.0]}

    def rule(context: tuple[int, ...], k: int) -> float:
        return logprobs[(9, 9) if context[-2:] == (9, 9) else ()][k - head]

    rollout = trajectory(turn(0), turn(1, own=[9, 9, 1], note=(0, 2)))
    [note] = score(rollout, FULL, FakeScorer(rule), question("abc"))
    assert note.p_mem == pytest.approx(math.exp(-0.2))
    assert note.p_baseline == pytest.approx(math.exp(-2.0))
    assert note.r == pytest.approx(math.exp(-0.2) - math.exp(-2.0))
    assert note.reason is None


def naive(rollouts: Sequence[Trajectory], golds: Sequence[str], scorer: FakeScorer) -> list[dict[int, float]]:
    """The published reward without threshold, one context at a time, in plain loops."""
    head = len(f"\n<think>\n{ProbeSettings().thought}\n</think>\n<answer>\n")
    out: list[dict[int, float]] = []
    for rollout, gold in zip(rollouts, golds, strict=True):
        rewards: dict[int, float] = {}
        history = list(rollout.question_ids)
        for number, step in enumerate(rollout.turns):
            if number >= 1 and step.note_span is not None:
                probabilities = []
                own = list(step.forced_ids) + list(step.generated_ids)
                for context in (list(rollout.question_ids) + own[step.note_span[0] : step.note_span[1]], history):
                    total = 0.0
                    for k in range(len(gold)):
                        total += scorer.rule(tuple(context), head + k)
                    probabilities.append(math.exp(total / len(gold)))
                rewards[number] = probabilities[0] - probabilities[1]
            history = history + list(step.forced_ids) + list(step.generated_ids)
            if step.observation is not None:
                for part in step.observation.parts:
                    history = history + list(part.ids)
        out.append(rewards)
    return out


@pytest.mark.parametrize("seed", range(5))
def test_batches_agree_with_a_naive_implementation(seed: int) -> None:
    rng = random.Random(seed)
    questions = [question(gold, id=gold) for gold in ("Paris", "東京都", "x")]
    asked, rollouts = [], []
    for n in range(12):
        q = rng.choice(questions)
        turns = []
        for t in range(rng.randint(1, 5)):
            own = rng.choices(range(50), k=rng.randint(3, 9))
            start = rng.randint(0, 1)
            note = (start, rng.randint(start + 1, len(own) - 1)) if rng.random() < 0.7 else None
            turns.append(turn(t, own, note, forced=rng.randint(0, 2), seen=rng.choices(range(50), k=rng.randint(0, 4))))
        asked.append(q)
        rollouts.append(trajectory(*turns, stop=StopReason.TURN_LIMIT, id=q.id, rollout=n))
    scorer = FakeScorer()
    found = score_notes(asked, rollouts, Chunks(1), scorer, FULL)
    assert len(scorer.calls) == 1
    expected = naive(rollouts, [str(q.gold) for q in asked], scorer)
    assert [{note.turn: note.r for note in notes} for notes in found] == [pytest.approx(r) for r in expected]
    assert sum(map(len, found)) > 10


def test_notes_that_are_not_closed_are_not_scored() -> None:
    rollout = trajectory(
        turn(0),
        turn(1, text="<mem>cut off"),
        turn(2, text="<mem> </mem><think>t</think><search>s</search>"),
        turn(3, text="<think>t</think><search>s</search>"),
        stop=StopReason.TURN_LIMIT,
    )
    scorer = FakeScorer()
    assert score(rollout, NONE, scorer) == []
    assert scorer.calls == []  # nothing to ask: the scorer is left alone
    assert score(trajectory(stop=StopReason.CONTEXT_OVERFLOW), NONE, scorer) == []


@pytest.mark.parametrize(
    ("asked", "settings", "reason"),
    [
        (question(None), NONE, NoSignal.NO_GOLD),
        (question(None, probe=" "), NONE, NoSignal.EMPTY_GOLD),
        (question("Paris"), MemorySettings(probe=ProbeSettings(max_gold_tokens=4)), NoSignal.LONG_GOLD),
    ],
)
def test_a_question_that_cannot_be_probed_gives_no_signal(
    asked: Question, settings: MemorySettings, reason: NoSignal
) -> None:
    scorer = FakeScorer()
    notes = score(three_turns(), settings, scorer, asked)
    assert [(note.turn, note.r, note.p_mem, note.reason) for note in notes] == [(t, None, None, reason) for t in (1, 2)]
    assert scorer.calls == []


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("length_of_bad_context", [3, 4])  # the note's, the history's
def test_log_probs_that_are_no_numbers_give_no_signal(bad: float, length_of_bad_context: int) -> None:
    rollout = trajectory(turn(0, own=[1, 2]), turn(1, own=[3, 4], note=(0, 1)))
    scorer = FakeScorer(lambda context, k: bad if len(context) == length_of_bad_context and k % 2 else -0.5)
    [note] = score(rollout, FULL, scorer)
    assert (note.r, note.p_mem, note.reason, note.gold_tokens) == (None, None, "nan", 5)


def test_contexts_beyond_the_window_give_no_signal() -> None:
    probe = len(f"\n<think>\n{ProbeSettings().thought}\n</think>\n<answer>\nParis")
    sizes = {"none": (4, 3), "full": (7, 12)}  # the longest context of the notes of turns 1 and 2
    for settings in (NONE, FULL):
        first, second = sizes[settings.baseline]
        for limit, expected in ((probe + max(first, second), 0), (probe + max(first, second) - 1, 1), (probe, 2)):
            scorer = FakeScorer()
            [notes] = score_notes([question()], [three_turns()], Chunks(1), scorer, settings, limit_tokens=limit)
            assert [note.reason for note in notes].count("too_long") == expected
            assert all(len(c) + probe <= limit for c in scorer.contexts)
            assert all((note.r is None) == (note.reason == "too_long") for note in notes)


def test_one_bad_note_leaves_the_others_alone() -> None:
    scorer = FakeScorer(lambda context, k: math.nan if context[-1] == 8 else -0.5)
    first, second = score(three_turns(), NONE, scorer)
    assert (first.r, second.r, second.reason) == (pytest.approx(math.exp(-0.5)), None, "nan")


def test_rollouts_that_infrastructure_spoilt_cost_nothing_and_give_no_signal() -> None:
    for broken in (
        trajectory(*three_turns().turns, stop=StopReason.SAMPLER_ERROR),
        trajectory(turn(0, tool_error="503"), turn(1, note=(0, 2)), answer="Paris"),
    ):
        scorer = FakeScorer()
        notes = score(broken, NONE, scorer)
        assert notes
        assert all(note.r is None and note.reason == "error" for note in notes)
        assert scorer.calls == []


def test_each_rollout_is_asked_about_its_own_question() -> None:
    a, b = question("aa", id="a"), question("bbbb", id="b")
    rollouts = [trajectory(*three_turns().turns, id=i, answer="x") for i in ("a", "b", "a")]
    scorer = FakeScorer()
    notes = score_notes([a, b, a], rollouts, Chunks(1), scorer, NONE)
    assert [[note.gold_tokens for note in rollout] for rollout in notes] == [[2, 2], [4, 4], [2, 2]]
    with pytest.raises(ValueError, match="'b' paired with question 'a'"):
        score_notes([a, a], rollouts[:2], Chunks(1), scorer, NONE)
    with pytest.raises(ValueError, match="1 questions for 3 trajectories"):
        score_notes([a], rollouts, Chunks(1), scorer, NONE)


def test_a_scorer_that_answers_too_little_is_an_error() -> None:
    class Short(FakeScorer):
        def score(self, requests: Sequence[ScoreRequest], temperature: float = 1.0) -> list[np.ndarray]:
            return [values[:-1] for values in super().score(requests)]

    with pytest.raises(ValueError, match="shapes"):
        score(three_turns(), NONE, Short())
