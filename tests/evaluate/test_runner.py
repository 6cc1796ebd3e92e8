"""Evaluation: the same questions and the same noise for every policy, and metrics by number of objectives."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mempo.config.evaluate import EvalSettings
from mempo.config.rewards import MemorySettings, OutcomeSettings
from mempo.evaluate.breakdown import metrics_by_objectives
from mempo.evaluate.runner import EvalSetup, evaluate
from mempo.rollout.interfaces import ScoreRequest, ToolErrorKind, ToolResult
from mempo.rollout.question import Question
from mempo.rollout.trajectory import Trajectory
from mempo.storage.rollouts import load_rollouts
from tests.train.fakes import ANSWER, TOKENIZER, Speaker, agent, questions, wandering

TWO = Question("two", "this; that?", (("Paris",), ("Rome",)))


class Even:
    """A scorer to whom every token has the probability 1/2."""

    def __init__(self) -> None:
        self.longest = 0

    def score(self, requests: Sequence[ScoreRequest], temperature: float = 1.0) -> list[np.ndarray]:
        assert temperature == 1.0
        self.longest = max(len(r.prefix_ids) + len(r.continuation_ids) for r in requests)
        return [np.full(len(r.which or ()), np.log(0.5)) for r in requests]


def setup(sampler: Speaker, **changes: Any) -> EvalSetup:
    made = EvalSetup(agent(), sampler, None, OutcomeSettings(), MemorySettings(), seed=0)
    return dataclasses.replace(made, **changes)


def right(rng: random.Random) -> str:
    return ANSWER


def test_two_policies_meet_the_same_noise() -> None:
    one, other = Speaker(right), Speaker(lambda rng: ANSWER.replace("Paris", "Rome"))
    asked, how = questions(3), EvalSettings(rollouts_per_question=2)
    evaluate(setup(one), asked, how)
    evaluate(setup(other), asked[::-1], how)  # and no matter in which order, or among which others
    assert sorted(map(str, one.seeds)) == sorted(map(str, other.seeds))
    assert len(set(one.seeds)) == 6
    third = Speaker(right)
    evaluate(setup(third, seed=1), asked, how)
    assert not set(third.seeds) & set(one.seeds)


def test_the_same_evaluation_twice_is_the_same() -> None:
    asked = questions(4)
    first, second = (evaluate(setup(Speaker(wandering)), asked, EvalSettings()) for _ in range(2))
    assert first == second
    assert len({record["num_turns"] for record in first}) > 1


def test_decoding_is_as_asked() -> None:
    speaker = Speaker(right)
    evaluate(setup(speaker), questions(1), EvalSettings(temperature=0.5, top_p=0.9, top_k=7))
    assert [(s.temperature, s.top_p, s.top_k) for s in speaker.asked] == [(0.5, 0.9, 7)]


def test_metrics_are_by_number_of_objectives_and_questions_are_counted_once() -> None:
    result = evaluate(setup(Speaker(right)), [*questions(3), TWO], EvalSettings(rollouts_per_question=2))
    table = metrics_by_objectives(result)
    assert list(table) == [1, 2]
    assert (table[1]["questions"], table[1]["rollouts"], table[1]["em"]) == (3, 6, 1)
    assert (table[2]["questions"], table[2]["rollouts"], table[2]["em"]) == (1, 2, 0)
    assert table[2]["stop/answered"] == 2
    assert [record["question_id"] for record in result] == ["q0", "q0", "q1", "q1", "q2", "q2", "two", "two"]


def test_parts_of_the_questions_are_told_apart_within_a_run_too() -> None:
    asked = [dataclasses.replace(q, meta={"data_source": f"s{i % 2}"}) for i, q in enumerate(questions(4))]
    found = metrics_by_objectives(evaluate(setup(Speaker(right)), asked, EvalSettings()))[1]["by"]["data_source"]
    assert {name: (part["questions"], part["em"]) for name, part in found.items()} == {"s0": (2, 1.0), "s1": (2, 1.0)}


def test_p_mem_needs_a_scorer() -> None:
    asked = questions(6)
    without = metrics_by_objectives(evaluate(setup(Speaker(wandering)), asked, EvalSettings()))[1]
    scored = metrics_by_objectives(evaluate(setup(Speaker(wandering), scorer=Even()), asked, EvalSettings()))[1]
    assert without["memory/p_mem"] is None
    assert scored["memory/p_mem"] == pytest.approx(0.5)
    assert scored["note/scored"] == without["note/written"]


def test_the_scorer_is_never_asked_beyond_its_window() -> None:
    scorer = Even()
    full = setup(Speaker(wandering), agent=agent("full"), scorer=scorer, memory=MemorySettings(baseline="full"))
    wide = metrics_by_objectives(evaluate(full, questions(8), EvalSettings()))[1]
    longest = scorer.longest
    narrow = metrics_by_objectives(
        evaluate(dataclasses.replace(full, window=longest - 1), questions(8), EvalSettings())
    )[1]
    assert scorer.longest < longest
    assert (narrow["note/no_signal/too_long"] or 0) >= 1
    assert (narrow["note/scored"] or 0) < (wide["note/scored"] or 0)


def test_an_own_score_takes_the_place_of_the_match() -> None:
    def own(question: Question, trajectory: Trajectory) -> float | None:
        return None if question.id == "q0" else 0.25

    result = evaluate(setup(Speaker(right), custom_score=own), questions(3), EvalSettings())
    assert [record["score"] for record in result] == [None, 0.25, 0.25]
    assert metrics_by_objectives(result)[1]["score"] == 0.25
    assert metrics_by_objectives(result)[1]["em"] == 1


def test_errors_stand_apart() -> None:
    failing = agent(result=ToolResult(notice="503", error=ToolErrorKind.UNAVAILABLE))
    table = metrics_by_objectives(evaluate(setup(Speaker(wandering), agent=failing), questions(12), EvalSettings()))[1]
    assert 0 < (table["errors"] or 0) < 12
    assert table["searches"] == 0  # whoever searched is among the errors
    assert table["score"] is not None


def test_rollouts_are_saved(tmp_path: Path) -> None:
    made = setup(Speaker(wandering))
    result = evaluate(made, questions(3), EvalSettings(), tmp_path / "deep" / "rollouts.jsonl")
    trajectories, lines, _ = load_rollouts(tmp_path / "deep" / "rollouts.jsonl", TOKENIZER, made.agent.grammar)
    assert [trajectory.stop for trajectory in trajectories] == [record["stop"] for record in result]
    assert [line["question_id"] for line in lines] == ["q0", "q1", "q2"]
    assert [line["score"] for line in lines] == [record["score"] for record in result]
