"""The local engine on the rollouts of a step that a verl run saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mempo.engine.model import load_policy, load_tokenizer
from mempo.engine.optimizer import learning_rate
from mempo.engine.policy import Policy
from mempo.engine.scorer import LocalScorer
from mempo.engine.update import Updater
from mempo.rollout.protocol import TurnGrammar
from mempo.rollout.question import Question, as_gold
from mempo.rollout.trajectory import Trajectory
from mempo.storage.rollouts import load_rollouts
from mempo.train.advantages import batch_advantages
from mempo.train.batch import advantages_by_turn, training_rows
from mempo.train.rl import update_policy
from mempo.train.score_batch import Scoring, score_batch
from tests.cluster.with_verl import scripted
from tests.cluster.with_verl.run_verl import ROLLOUTS, VerlRun

Advantages = list[dict[int, list[float]]]
"""`[rollouts]{turn: [generated tokens]}`."""


@dataclass(frozen=True)
class LocalStep:
    """`facts`, `advantages`, `updates`, `policy`: what the local engine makes; `saved_*`: what verl's trainer made."""

    trajectories: list[Trajectory]
    facts: list[dict[str, Any]]
    saved_facts: list[dict[str, Any]]
    outcome: list[float | None]
    advantages: Advantages
    saved_advantages: Advantages
    updates: Mapping[str, float | None]
    policy: Policy


def first_step(run: VerlRun) -> LocalStep:
    """Step 1 again, from the weights that the run began with. An adapter begins with no effect, so the loss is that
    of the weights below it; gradient and weights are not to be compared then."""
    config = run.resolved.config
    path = config.model.path or ""
    tokenizer = load_tokenizer(path)
    grammar = TurnGrammar(config.agent.notes, config.agent.first_note, ("search", "answer"))
    trajectories, lines, saved = load_rollouts(run.folder.rollouts(1), tokenizer, grammar)
    questions = [Question(line["question_id"], line["question"], as_gold(line["gold"])) for line in lines]
    policy, reference = load_policy(config.model, path, tokenizer), load_policy(config.model, path, tokenizer)
    scoring = Scoring(
        config.reward, config.memory, config.advantages, tokenizer, policy.window, custom_score=scripted.score
    )
    scored = score_batch(scoring, questions, trajectories, LocalScorer(policy), LocalScorer(reference))
    batch = scored.counted(ROLLOUTS)
    advantages = batch_advantages(batch, config.advantages, config.memory)
    rows = training_rows(batch, advantages)
    updater = Updater(policy, config.rl.optim, config.rl.loss, reference)
    updates = update_policy(updater, rows, config.rl, learning_rate(config.rl.optim, 0, config.rl.steps))
    facts = scored.records_with(batch, advantages)
    return LocalStep(
        trajectories=trajectories,
        facts=scored.facts,
        saved_facts=lines,
        outcome=[fact["advantage"] for fact in facts],
        advantages=advantages_by_turn(rows, len(trajectories)),
        saved_advantages=saved,
        updates=updates,
        policy=policy,
    )
