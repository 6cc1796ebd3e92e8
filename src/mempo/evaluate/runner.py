"""Play questions with a fixed policy and gather the facts of every rollout."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from mempo.agent import Agent, DecodingSettings, Job, run_rollouts
from mempo.interfaces import Sampler, Scorer
from mempo.measures import aggregate, rollout_facts
from mempo.question import Question
from mempo.rewards.memory import MemorySettings, score_notes
from mempo.rewards.outcome import CustomScore, OutcomeSettings, outcome_score
from mempo.runs.rollouts import save_rollouts
from mempo.settings import Settings
from mempo.trajectory import StopReason


class EvalSettings(Settings):
    """How a policy is evaluated."""

    questions: int = Field(default=100, ge=1)
    """Test questions per number of objectives."""
    rollouts_per_question: int = Field(default=1, ge=1)
    temperature: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """1: the policy as it was trained. 0: greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)


@dataclass(frozen=True)
class EvalSetup:
    """Who is evaluated, and how answers are judged. Without a scorer P(mem) is not reported. There is no reference
    policy here: the baseline of the memory signal is computed by the policy itself."""

    agent: Agent
    sampler: Sampler
    scorer: Scorer | None
    outcome: OutcomeSettings
    memory: MemorySettings
    seed: int
    custom_score: CustomScore | None = None
    window: int | None = None
    """The most tokens that the scorer's model can see."""


@dataclass(frozen=True)
class EvalResult:
    """`facts` and `stops` `[rollouts]`, in the order of the questions."""

    facts: list[dict[str, Any]]
    stops: list[StopReason]

    def by_objectives(self) -> dict[int, dict[str, float | None]]:
        """Measures by number of objectives, and the number of questions as `questions`."""
        table = {}
        for k in sorted({fact["objectives"] for fact in self.facts}):
            chosen = [i for i, fact in enumerate(self.facts) if fact["objectives"] == k]
            facts = [self.facts[i] for i in chosen]
            measures = aggregate(facts, [self.stops[i] for i in chosen])
            table[k] = {"questions": float(len({fact["question_id"] for fact in facts})), **measures}
        return table


def evaluate(
    setup: EvalSetup, questions: Sequence[Question], settings: EvalSettings, save_to: Path | None = None
) -> EvalResult:
    """Roll every question out `rollouts_per_question` times. The noise depends on question and rollout alone, so two
    policies meet the same."""
    jobs = [
        Job(question, rollout, (setup.seed, "eval"))
        for question in questions
        for rollout in range(settings.rollouts_per_question)
    ]
    asked = [job.question for job in jobs]
    decoding = DecodingSettings(settings.temperature, settings.top_p, settings.top_k)
    trajectories = asyncio.run(run_rollouts(setup.agent, setup.sampler, jobs, decoding))
    notes = [[] for _ in trajectories]
    if setup.scorer is not None:
        codec = setup.agent.renderer.codec
        memory = setup.memory.model_copy(update={"full_policy": "actor"})
        notes = score_notes(asked, trajectories, codec, setup.scorer, memory, setup.window)
    facts = []
    for question, trajectory, scored in zip(asked, trajectories, notes, strict=True):
        outcome = outcome_score(question, trajectory, setup.outcome, setup.custom_score)
        facts.append({"question_id": question.id, **rollout_facts(question, trajectory, outcome, scored)})
    if save_to is not None:
        save_rollouts(save_to, trajectories, facts)
    return EvalResult(facts, [trajectory.stop for trajectory in trajectories])
