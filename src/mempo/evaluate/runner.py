"""Play questions with a fixed policy and gather the records of every rollout."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from mempo.config.evaluate import EvalSettings
from mempo.config.rewards import MemorySettings, OutcomeSettings
from mempo.config.rollout import DecodingSettings
from mempo.errors import UserError, counted
from mempo.evaluate.breakdown import groups_of
from mempo.evaluate.costs import costs, steps_of
from mempo.progress import Progress
from mempo.rewards.memory import score_notes
from mempo.rewards.note_reward import NoteScore
from mempo.rewards.outcome import CustomScore, outcome_score
from mempo.rewards.rollout_metrics import counts, rollout_record
from mempo.rollout.agent import Agent, Job, Tally, at_once, rollout
from mempo.rollout.interfaces import CohortSampler, Sampler, Scorer
from mempo.rollout.question import Question
from mempo.rollout.trajectory import Trajectory
from mempo.storage.rollouts import save_rollouts


def greedy_note(settings: EvalSettings) -> list[str]:
    """A sentence on samples that cannot differ. Said and not refused: tools and servers may differ from one call to the
    next, and somebody may want to know by how much."""
    samples = settings.rollouts_per_question
    if samples == 1 or settings.temperature > 0:
        return []
    return [
        f"decoding is greedy (evaluate.temperature 0): the {samples} samples of a question differ only where tools or "
        "the server do; ask for one sample, or set a temperature"
    ]


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


OnDone = Callable[[Job, Trajectory, float], None]


def jobs_of(questions: Sequence[Question], settings: EvalSettings, seed: int) -> list[Job]:
    """Every question `rollouts_per_question` times. The noise depends on seed, question and rollout alone: two policies
    meet the same, and so does an evaluation that was interrupted."""
    return [
        Job(question, rollout, (seed, "eval"))
        for question in questions
        for rollout in range(settings.rollouts_per_question)
    ]


async def play(
    agent: Agent,
    sampler: Sampler,
    jobs: Sequence[Job],
    settings: EvalSettings,
    on_done: OnDone,
    tell: Callable[[Tally], None] = lambda tally: None,
) -> None:
    """Roll the jobs out, at most `max_in_flight` at once; `on_done(job, trajectory, seconds)` is called as each ends,
    and `tell` as they go on.

    Seconds are those from the first prompt to the end, waiting for the others included. The next job begins in the
    place of one that ended, so that a sampler which batches in lockstep goes on with full batches.

    Raises:
        UserError: a question that cannot be played, or `max_errors_in_row` failed rollouts in a row.
    """
    cohort = sampler if isinstance(sampler, CohortSampler) else None
    waiting = iter(jobs)
    decoding = DecodingSettings(settings.temperature, settings.top_p, settings.top_k)
    workers = min(settings.max_in_flight, len(jobs))
    errors_in_row = 0
    tally = Tally(len(jobs), tell)
    if cohort is not None:
        cohort.enter(workers)

    async def work() -> None:
        nonlocal errors_in_row
        try:
            for job in waiting:
                began = time.monotonic()
                tally.count(in_flight=1)
                done = await rollout(agent, sampler, job, decoding, tally)
                on_done(job, done, time.monotonic() - began)
                tally.count(in_flight=-1, done=1)
                errors_in_row = errors_in_row + 1 if done.is_error else 0
                if errors_in_row >= settings.max_errors_in_row:
                    raise UserError(
                        f"{counted(errors_in_row, 'rollout')} in a row failed by infrastructure, the last with: "
                        f"{done.error or _tool_error(done)}; fix it, then repeat them with --retry-errors"
                    )
        finally:
            if cohort is not None:
                cohort.leave()

    await at_once((work() for _ in range(workers)), in_turn=cohort is None)


def _tool_error(trajectory: Trajectory) -> str:
    return next((turn.tool_error for turn in reversed(trajectory.turns) if turn.tool_error), "no message")


def record_of(
    setup: EvalSetup,
    question: Question,
    trajectory: Trajectory,
    seconds: float | None = None,
) -> dict[str, Any]:
    """What is known of a rollout: its scores, its costs, and how long it took where that was measured."""
    outcome = outcome_score(question, trajectory, setup.outcome, setup.custom_score)
    return {
        "question_id": question.id,
        **rollout_record(question, trajectory, outcome),
        **costs(steps_of(trajectory)),
        **({"groups": groups} if (groups := groups_of(question)) else {}),
        **({} if seconds is None else {"seconds": round(seconds, 3)}),
    }


def scored_notes(
    setup: EvalSetup,
    questions: Sequence[Question],
    trajectories: Sequence[Trajectory],
    counted: Sequence[bool] | None = None,
) -> list[list[NoteScore]]:
    """The memory reward of every note, `[rollouts][notes]`; none without a scorer. `counted` `[rollouts]`: nothing is
    asked about the notes of the others."""
    if setup.scorer is None or not trajectories:
        return [[] for _ in trajectories]
    tokenizer = setup.agent.renderer.tokenizer
    memory = setup.memory.model_copy(update={"full_policy": "actor"})
    return score_notes(questions, trajectories, tokenizer, setup.scorer, memory, setup.window, counted=counted)


def evaluate(
    setup: EvalSetup,
    questions: Sequence[Question],
    settings: EvalSettings,
    save_to: Path | None = None,
    console: Console | None = None,
) -> list[dict[str, Any]]:
    """Roll every question out and keep everything in memory: the evaluations within a training run, which show how far
    they are on the console. What outlives a kill is `mempo.evaluate.folder`. The records `[rollouts]`, in the order of
    the questions."""
    jobs = jobs_of(questions, settings, setup.seed)
    places = {id(job): i for i, job in enumerate(jobs)}
    done: dict[int, Trajectory] = {}

    def on_done(job: Job, trajectory: Trajectory, seconds: float) -> None:
        done[places[id(job)]] = trajectory

    # A training run goes on, and counts them.
    patient = settings.model_copy(update={"max_errors_in_row": len(jobs) + 1})
    with Progress(console or Console(quiet=True), "evaluation", len(jobs), "rollout") as progress:
        asyncio.run(play(setup.agent, setup.sampler, jobs, patient, on_done, lambda t: progress.step(t.done, t.note)))
    asked, trajectories = [job.question for job in jobs], [done[i] for i in range(len(jobs))]
    records = [record_of(setup, *played) for played in zip(asked, trajectories, strict=True)]
    notes = scored_notes(setup, asked, trajectories, list(map(counts, records)))
    records = [
        {**record, "stop": trajectory.stop, "notes": list(map(asdict, found))}
        for record, trajectory, found in zip(records, trajectories, notes, strict=True)
    ]
    if save_to is not None:
        save_rollouts(save_to, trajectories, records)
    return records
