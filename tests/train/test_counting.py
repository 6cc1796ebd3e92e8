"""A rollout without a score does not exist: no row, no group, no pool, no metric but the count of its kind."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mempo.cluster.minibatches import deal_questions
from mempo.cluster.rollouts import no_rows_because, whole_group
from mempo.engine.loss import LossSettings
from mempo.engine.optimizer import OptimSettings
from mempo.engine.scorer import LocalScorer
from mempo.engine.update import Updater
from mempo.errors import UserError
from mempo.rewards.outcome import OutcomeSettings, outcome_score
from mempo.rollout.agent import DecodingSettings, Job, rollout
from mempo.rollout.interfaces import ScoreRequest, ToolErrorKind, ToolResult
from mempo.rollout.question import Question
from mempo.rollout.trajectory import StopReason, Trajectory
from mempo.storage.rollouts import load_rollouts
from mempo.train.advantages import Advantages, batch_advantages
from mempo.train.batch import advantages_by_turn, training_rows
from mempo.train.rl import train_rl, update_policy
from mempo.train.score_batch import ScoredBatch, refuse_mostly_failed, refuse_nothing_counted, score_batch
from tests.tiny import Scripted, tiny_llama
from tests.train.fakes import (
    NOTED_ANSWER,
    NOTED_SEARCH,
    SEARCH,
    TOKENIZER,
    Speaker,
    agent,
    played,
    questions,
    run_folder,
    settings,
    setup,
    wandering,
)
from tests.train.small import quiet

SCORES = {"Paris": 1.0, "Rome": 0.0}
FAILING = ToolResult(notice="503", error=ToolErrorKind.UNAVAILABLE)
Batch = list[tuple[Question, Trajectory]]


def own_score(question: Question, trajectory: Trajectory) -> float | None:
    return SCORES.get(trajectory.answer or "")


class Recorder:
    def __init__(self, scorer: LocalScorer) -> None:
        self.scorer, self.requests = scorer, list[ScoreRequest]()

    def score(self, requests: Sequence[ScoreRequest], temperature: float = 1.0) -> list[np.ndarray]:
        self.requests += requests
        return self.scorer.score(requests, temperature)


def said(place: int, *answers: str, turns: int = 2) -> Batch:
    """The rollouts of question `place`, with these answers, which their notes say too."""
    asked = questions(place + 1)[place]
    made = []
    for i, answer in enumerate(answers):
        texts = [SEARCH, *[NOTED_SEARCH] * (turns - 2), NOTED_ANSWER.replace("Paris", answer)]
        texts = [text.replace("<mem>n", f"<mem>{answer}") for text in texts]
        job = Job(asked, i, ("said",))
        made.append((asked, asyncio.run(rollout(agent(), Scripted(TOKENIZER, texts), job, DecodingSettings()))))
    return made


def overflow(place: int, rollout: int) -> tuple[Question, Trajectory]:
    asked, made = said(place, "Paris", turns=3)[0]
    return asked, dataclasses.replace(made, rollout=rollout, stop=StopReason.CONTEXT_OVERFLOW, answer=None)


@dataclasses.dataclass
class Step:
    scored: ScoredBatch
    counted: list[int]
    advantages: Advantages
    tokens: list[dict[int, list[float]]]
    updates: dict[str, float | None]
    weights: dict[str, torch.Tensor]
    asked: int

    @property
    def metrics(self) -> dict[str, float | None]:
        return {**self.scored.metrics, **self.advantages.metrics, **self.updates}


def step(batch: Batch, size: int, updates: int = 1, loss: LossSettings | None = None, **outcome: Any) -> Step:
    """A step of the local engine, from scores to weights."""
    policy = tiny_llama(TOKENIZER)
    made = setup(Speaker(wandering), questions(4), policy)
    memory = made.scoring.memory.model_copy(update={"min_pool": 2, "fade_batches": None})
    scoring = dataclasses.replace(
        made.scoring,
        outcome=OutcomeSettings(format_gate=False, score="own:score", **outcome),
        custom_score=own_score,
        memory=memory,
    )
    scorer = Recorder(LocalScorer(policy))
    scored = score_batch(scoring, [question for question, _ in batch], [trajectory for _, trajectory in batch], scorer)
    counted = scored.counted(size)
    advantages = batch_advantages(counted, scoring.advantages, memory)
    rows = training_rows(counted, advantages)
    updater = Updater(policy, OptimSettings(), loss, tiny_llama(TOKENIZER, seed=3) if loss else None)
    how = settings(
        questions_per_step=len(batch) // size,
        rollouts_per_question=size,
        updates_per_step=updates,
        loss=loss or LossSettings(),
    )
    return Step(
        scored=scored,
        counted=list(counted.places),
        advantages=advantages,
        tokens=advantages_by_turn(rows, len(batch)),
        updates=update_policy(updater, rows, how, 1e-2),
        weights=copy.deepcopy(policy.model.state_dict()),
        asked=len(scorer.requests),
    )


KINDS = {"rollouts", "errors", "unscored", "unscored/custom", "unscored/overflow", "stop/tool_error", "tool_errors"}


def assert_alike(mixed: Step, pure: Step, counted: Sequence[int]) -> None:
    """`counted`: places of the rollouts of `pure` in `mixed`."""
    assert mixed.counted == list(counted)
    assert (mixed.advantages.outcome, mixed.advantages.memory) == (pure.advantages.outcome, pure.advantages.memory)
    assert [mixed.tokens[i] for i in counted] == pure.tokens
    assert all(mixed.tokens[i] == {} for i in set(range(len(mixed.tokens))) - set(counted)), "no row"
    assert mixed.asked == pure.asked, "nothing is asked about notes of rollouts that do not count"
    found, wanted = mixed.metrics, pure.metrics
    assert {key for key in {*found, *wanted} - KINDS if found.get(key) != wanted.get(key)} == set()
    assert all(torch.equal(tensor, pure.weights[name]) for name, tensor in mixed.weights.items())


def test_scores_1_0_none_none_learn_what_1_0_learns() -> None:
    pure = said(0, "Paris", "Rome")
    mixed = [*pure, *said(0, "no comment at all", "hello")]
    found, wanted = step(mixed, 4), step(pure, 2)
    assert_alike(found, wanted, [0, 1])
    assert (wanted.updates["rows"], wanted.metrics["note/scored"]) == (4, 2)
    assert (found.metrics["unscored"], found.metrics["unscored/custom"]) == (2, 2)
    assert found.metrics["errors"] == 0
    assert any(found.advantages.memory[1].values()), "the notes that count are paid"


@pytest.mark.parametrize("loss", [None, LossSettings(kl="k3", kl_coef=0.1), LossSettings(aggregate="rollout_mean")])
@pytest.mark.parametrize("updates", [1, 2])
def test_kinds_that_do_not_count_leave_every_step_as_it_is(updates: int, loss: LossSettings | None) -> None:
    """None, an excluded overflow and a failure, in either order, beside rollouts with scores."""
    first, second = said(0, "Paris", "Rome", turns=3), said(1, "Rome", "Paris")
    failed = played(questions(1)[0], 3, 2, result=FAILING, max_tool_errors=9)
    mixed = [overflow(0, 0), first[0], (first[0][0], failed), first[1], *second, *said(1, "x"), overflow(1, 3)]
    found = step(mixed, 4, updates, loss, on_overflow="exclude")
    assert_alike(found, step([*first, *second], 2, updates, loss, on_overflow="exclude"), [1, 3, 4, 5])
    counts = {name: found.metrics[name] for name in ("errors", "unscored/custom", "unscored/overflow")}
    assert counts == {"errors": 1, "unscored/custom": 1, "unscored/overflow": 2}
    assert found.metrics["stop/context_overflow"] == 0


def test_a_group_in_which_none_counts_is_no_group() -> None:
    pure, silent = said(0, "Paris", "Rome"), said(1, "x", "y")
    found = step([*pure, *silent], 2)
    assert_alike(found, step(pure, 2), [0, 1])
    assert found.metrics["advantages/zero_spread_groups"] == 0


def test_a_counted_overflow_is_scored() -> None:
    found = step([*said(0, "Paris"), (said(0, "Rome")[0][0], dataclasses.replace(said(0, "Rome")[0][1], rollout=1))], 2)
    assert found.counted == [0, 1]


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (said(0, "x", "y"), r"none of the 2 rollouts of the step has a score.*2 got None from the score function"),
        ([overflow(0, 0), *said(0, "x")], "1 ran out of their context window, and reward.on_overflow is exclude"),
        ([*said(0, "x"), (questions(1)[0], played(questions(1)[0], 3, 1, result=FAILING))], "1 failed, the first: 503"),
    ],
)
def test_a_step_in_which_none_counts_stops_with_the_causes(batch: Batch, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        step(batch, 2, on_overflow="exclude")
    assert "\n" not in str(caught.value)


def test_questions_without_gold_stop_a_step_by_name_of_the_cause() -> None:
    made = setup(Speaker(wandering), questions(1))
    asked, trajectory = said(0, "Paris")[0]
    outcomes = made.scoring.outcomes([dataclasses.replace(asked, gold=None)] * 2, [trajectory] * 2)
    with pytest.raises(UserError, match="2 belong to questions without a gold answer"):
        refuse_nothing_counted([trajectory] * 2, outcomes)


def test_saved_rollouts_say_why_they_do_not_count(tmp_path: Path) -> None:
    made = setup(Speaker(wandering), questions(4), agent_of=agent(max_turns=5))
    own = {"outcome": OutcomeSettings(format_gate=False, score="own:score"), "custom_score": own_score}
    made = dataclasses.replace(made, scoring=dataclasses.replace(made.scoring, **own))
    run = run_folder(tmp_path)
    train_rl(made, settings(questions_per_step=4), run, quiet())
    (metrics,) = run.metrics()
    _, lines, _ = load_rollouts(run.rollouts(1), TOKENIZER, made.agent.grammar)
    why = [line["unscored"] for line in lines if line["score"] is None]
    assert metrics["unscored"] == len(why) > 0
    assert set(why) == {"custom"}
    assert all(line["unscored"] is None for line in lines if line["score"] is not None)
    silent = [note for line in lines if line["score"] is None for note in line["notes"]]
    assert silent
    assert {(note["r"], note["reason"], note["advantage"]) for note in silent} == {(None, "unscored", None)}


# --- groups --------------------------------------------------------------------------------------------------------


def test_a_group_of_two_questions_is_an_error_that_names_both() -> None:
    mixed = [pair for i in range(2) for place in (0, 1) for pair in said(place, "Paris" if i else "Rome")]
    with pytest.raises(ValueError, match=r"'q0' and 'q1'.*is its size 2 the number of rollouts per question"):
        step(mixed, 2)


# --- the cluster ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "stops"), [(0.74, True), (0.75, False), (1.0, False)])
def test_a_step_of_which_most_rollouts_failed_stops_with_the_cause(limit: float, stops: bool) -> None:
    rollouts = [made for _, made in said(0, "Paris", "Rome", "Paris", "Rome")]
    rollouts[:3] = [
        dataclasses.replace(made, stop=StopReason.TOOL_ERROR, error=f"503 from {i}")
        for i, made in enumerate(rollouts[:3])
    ]
    with pytest.raises(UserError, match=r"^3 of 4 rollouts.*0\.74; the first: 503 from 0") if stops else nullcontext():
        refuse_mostly_failed(rollouts, limit)


def test_a_rollout_of_another_question_in_a_group_is_refused() -> None:
    [(asked, _)], [(_, stranger)] = said(0, "Paris"), said(1, "Paris")
    with pytest.raises(ValueError, match="rollout of question 'q1' in the group of 'q0'"):
        whole_group("uid", asked, {0: stranger}, 1)


def test_the_workers_log_says_why_a_rollout_has_no_rows() -> None:
    asked, trajectory = said(0, "x")[0]
    outcome = outcome_score(asked, trajectory, OutcomeSettings(score="own:score"), own_score)
    assert no_rows_because(trajectory, outcome) == "the rollout has no score (custom), so it does not count"


def test_rows_that_are_not_there_leave_the_dealing_as_it_is() -> None:
    """Questions 0 to 3 of two rollouts each, one row a rollout; question 1 has one that does not count, 2 none that
    does."""
    made = deal_questions([0, 0, 1, 3, 3], questions=4, steps=2, ranks=1)
    assert made.members == ((0, 1, 2), (3, 4))
