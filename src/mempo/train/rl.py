"""Reinforcement learning: the main loop.

Follow a token: a question (`rollout_jobs`) is rolled out (`run_rollouts`), and judged (`judge_rollouts`): every rollout
gets one score (`outcome_score`), every note its memory reward (`score_notes`), both become one advantage per generated
token (`assign_credit`). Then the turns become training rows (`rows_of`), and one optimizer step goes over all rows of a
batch of questions (`Updater.rl_step`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console

from mempo.agent import Agent, Job, run_rollouts
from mempo.config.rewards import MemorySettings, OutcomeSettings
from mempo.config.rollout import DecodingSettings
from mempo.config.train import CreditSettings, RlSettings
from mempo.credit import CustomCredit
from mempo.engine.optimizer import learning_rate
from mempo.engine.update import TrainRow, Updater
from mempo.errors import UserError
from mempo.interfaces import Sampler, Scorer
from mempo.question import Question
from mempo.rewards.outcome import CustomScore
from mempo.runs.folder import RunFolder
from mempo.runs.rollouts import save_rollouts
from mempo.train.credit import Credit
from mempo.train.judge import Judge, judge_rollouts
from mempo.train.progress import StageProgress
from mempo.train.sft import take
from mempo.train.state import Rescue, last_checkpoint, load_optimizer_state, save_state
from mempo.trajectory import Trajectory, rows_of

SHOWN = ("score", "em", "memory/p_mem", "note_tokens", "turns", "searches", "update/entropy")
UPDATE_MEASURES = (
    *("loss", "policy", "ratio", "clip_fraction", "k3", "k3_old", "entropy", "grad_norm", "lr"),
    *("padding_share", "prefix_share"),
)


@dataclass(frozen=True)
class RlSetup:
    """What the loop works with. `updater` holds the policy that `sampler` and `scorer` use; `reference` scores under
    the frozen policy that RL started from, where the memory signal asks for it."""

    questions: Sequence[Question]
    agent: Agent
    sampler: Sampler
    scorer: Scorer
    updater: Updater
    outcome: OutcomeSettings
    memory: MemorySettings
    credit: CreditSettings
    seed: int
    custom_score: CustomScore | None = None
    custom_credit: CustomCredit | None = None
    reference: Scorer | None = None

    def judge(self, memory_signal: bool) -> Judge:
        return Judge(
            outcome=self.outcome,
            memory=self.memory,
            credit=self.credit,
            codec=self.agent.renderer.codec,
            window_tokens=self.updater.policy.window,
            memory_signal=memory_signal,
            custom_score=self.custom_score,
            custom_credit=self.custom_credit,
        )


def train_rl(setup: RlSetup, settings: RlSettings, run: RunFolder, console: Console) -> None:
    """Run the steps that are left; a resumed run does what an unbroken one would have done.

    Raises:
        UserError: too few questions, or a step in which no rollout counts.
    """
    check_questions(setup.questions, settings)
    updater, policy = setup.updater, setup.updater.policy
    judge = setup.judge(settings.memory_signal)
    resumed = last_checkpoint(run, "rl")
    done = load_optimizer_state(resumed, updater.optimizer) if resumed else 0

    def save(step: int) -> object:
        return save_state(run, "rl", step, policy, updater.optimizer)

    with (
        StageProgress(console, "rl", settings.steps, SHOWN, done) as progress,
        Rescue(save, done, console, lambda: policy.version) as rescue,
    ):
        for step in range(done, settings.steps):
            clock = Clock()
            jobs, questions = rollout_jobs(setup, settings, step)
            decoding = DecodingSettings(temperature=settings.temperature)
            trajectories = asyncio.run(run_rollouts(setup.agent, setup.sampler, jobs, decoding))
            sampled = measures_of(setup.sampler)
            clock.lap("rollout")

            judged = judge_rollouts(
                judge, questions, trajectories, settings.rollouts_per_question, setup.scorer, setup.reference
            )
            clock.lap("memory_reward")

            lr = learning_rate(settings.optim, step, settings.steps)
            updates = update_policy(updater, trajectories, judged.credit, settings, lr)
            clock.lap("update")

            metrics = {**judged.metrics, **updates, **sampled, **clock.seconds}
            if settings.log_rollouts_every and (step + 1) % settings.log_rollouts_every == 0:
                save_rollouts(run.rollouts(step + 1), trajectories, judged.credited_facts(), judged.credit.tokens)
            run.log("rl", step + 1, metrics)
            progress.step(step + 1, metrics)
            rescue.finished(step + 1, due=(step + 1) % settings.save_every == 0 or step + 1 == settings.steps)


def measures_of(sampler: Sampler) -> dict[str, float | None]:
    """What a sampler says of itself, such as `sampler/logp_gap` of vLLM's; most say nothing."""
    measures = getattr(sampler, "measures", None)
    return measures() if measures else {}


def check_questions(questions: Sequence[Question], settings: RlSettings) -> None:
    """Refuse a batch larger than all questions together: it would hold some of them twice.

    Raises:
        UserError: the two numbers and the remedy.
    """
    if settings.steps and len(questions) < settings.questions_per_step:
        raise UserError(
            f"rl.questions_per_step is {settings.questions_per_step} but there are only {len(questions)} training "
            f"questions; bring more, or set rl.questions_per_step={max(len(questions), 1)}"
        )


def rollout_jobs(setup: RlSetup, settings: RlSettings, step: int) -> tuple[list[Job], list[Question]]:
    """`[questions × rollouts]` jobs of a step and the question of each; the same whenever they are asked for.

    The slot is part of the noise key: a question that comes twice in a batch gets two different groups.
    """
    count, per_question = settings.questions_per_step, settings.rollouts_per_question
    batch = take(setup.questions, step * count, count, f"{setup.seed} rl")
    jobs = [
        Job(question, rollout, (setup.seed, "rl", step, slot))
        for slot, question in enumerate(batch)
        for rollout in range(per_question)
    ]
    return jobs, [job.question for job in jobs]


def update_policy(
    updater: Updater, trajectories: Sequence[Trajectory], credit: Credit, settings: RlSettings, lr: float
) -> dict[str, float | None]:
    """`updates_per_step` optimizer steps; all rows of a question are in the same one.

    Rollouts that do not count have no rows. When no token has any advantage and there is no KL term, the gradient is
    zero by construction: no step is made, and it is counted. Metrics are means over the steps; where no step says
    anything about one of `UPDATE_MEASURES` it is None.
    """
    questions = len(trajectories) // settings.rollouts_per_question
    share = questions // settings.updates_per_step * settings.rollouts_per_question
    results: list[Mapping[str, float]] = []
    rows_total = 0
    for first in range(0, len(trajectories), share):
        rows = []
        for i in range(first, first + share):
            trajectory, advantages = trajectories[i], credit.tokens[i]
            if not credit.counted[i]:
                continue
            logprobs = {turn.index: turn.logprobs for turn in trajectory.turns}
            for row in rows_of(trajectory, i):
                rows.append(TrainRow(row, row.spread(advantages), row.spread(logprobs)))
        rows_total += len(rows)
        silent = not any(value for row in rows for value in row.advantages)
        if silent and settings.loss.kl == "none":
            results.append({"update/skipped": 1.0})
        else:
            results.append(updater.rl_step(rows, lr))
    names = dict.fromkeys(name for result in results for name in result)
    means = {n: sum(found) / len(found) for n in names if (found := [r[n] for r in results if n in r])}
    made = len(results) - sum(result["update/skipped"] for result in results)
    unknown = {f"update/{name}": None for name in UPDATE_MEASURES}
    return {**unknown, **means, "update/optimizer_steps": made, "rows": float(rows_total)}


class Clock:
    """Seconds per part of a step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.monotonic()

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.seconds[f"seconds/{name}"] = now - self._last
        self._last = now
