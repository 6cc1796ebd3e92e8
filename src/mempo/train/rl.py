"""Reinforcement learning: the main loop.

Sample, score, advantages, rows, update: questions are rolled out (`run_rollouts`); every rollout gets a score and every
note its memory reward (`score_batch`); both become advantages (`batch_advantages`), which are laid out once, on the
tokens of the training rows (`training_rows`); and an optimizer step goes over all rows of its questions
(`update_policy`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field, model_validator
from rich.console import Console

from mempo.agent import Agent, DecodingSettings, run_rollouts
from mempo.engine.optimizer import OptimSettings, learning_rate
from mempo.engine.update import TrainRow, Updater
from mempo.errors import UserError
from mempo.interfaces import Sampler, Scorer
from mempo.loss import LossSettings
from mempo.question import Question
from mempo.rewards.memory import MemorySettings
from mempo.rewards.outcome import CustomScore, OutcomeSettings
from mempo.runs.folder import RunFolder
from mempo.runs.rollouts import save_rollouts
from mempo.settings import Settings
from mempo.train.advantages import AdvantageFunction, batch_advantages
from mempo.train.batch import advantages_by_turn, rollout_jobs, training_rows
from mempo.train.credit_settings import CreditSettings
from mempo.train.progress import StageProgress
from mempo.train.score_batch import Scoring, score_batch
from mempo.train.state import Rescue, last_checkpoint, load_optimizer_state, load_silence, save_state

SHOWN = ("score", "em", "memory/p_mem", "note_tokens", "turns", "searches", "update/entropy")
UPDATE_MEASURES = (
    *("loss", "policy", "ratio", "clip_fraction", "k3", "k3_old", "entropy", "grad_norm", "lr"),
    *("padding_share", "prefix_share"),
)


class RlSettings(Settings):
    """The reinforcement learning stage."""

    steps: int = Field(default=0, ge=0)
    """Batches of questions; 0 skips the stage."""
    seed: int | None = Field(default=None, ge=0)
    """Seed of the order of questions and of the rollouts; None: `seed`, which also draws the data and the start. Apart
    from it, the noise of RL can be seen on one start."""
    questions_per_step: int = Field(default=8, ge=1)
    rollouts_per_question: int = Field(default=16, ge=1)
    updates_per_step: int = Field(default=1, ge=1)
    """Optimizer steps per batch of questions, whatever the number of turns and rows; questions are dealt out evenly."""
    temperature: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    top_p: float = 1.0
    """Must stay 1: old log-probs are of the whole distribution, so a cut tail makes the ratio of the update wrong."""
    top_k: int = 0
    schedule: Literal["auto", "lockstep", "eager"] = "auto"
    """How rollouts are batched: `lockstep` repeats exactly, `eager` never waits. `auto`: lockstep on CPU."""
    memory_signal: bool = True
    """Score the notes and add their advantages. Off: outcome alone, whatever `memory` says; evaluation still reports
    P(mem)."""
    probe_check_questions: int = Field(default=24, ge=0)
    """Before the first step, so many questions are asked whether the probe tells a right note from one with a wrong
    fact and from another question's note; 0: no check."""
    optim: OptimSettings = OptimSettings()
    loss: LossSettings = LossSettings()
    save_every: int = Field(default=20, ge=1)
    log_rollouts_every: int = Field(default=1, ge=0)
    """Save the rollouts of every so many steps; 0 saves none."""

    @model_validator(mode="after")
    def _whole_distribution(self) -> RlSettings:
        if self.top_p != 1 or self.top_k != 0:
            raise ValueError(
                f"rl samples from the whole distribution (top_p {self.top_p:g}, top_k {self.top_k} would bias the "
                "ratio); leave top_p=1, top_k=0; evaluation may differ"
            )
        if self.questions_per_step % self.updates_per_step:
            raise ValueError(
                f"questions_per_step {self.questions_per_step} is not a multiple of updates_per_step "
                f"{self.updates_per_step}; {self.questions_per_step * self.updates_per_step} is"
            )
        return self


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
    own_advantages: AdvantageFunction | None = None
    reference: Scorer | None = None

    def scoring(self, memory_signal: bool) -> Scoring:
        return Scoring(
            outcome=self.outcome,
            memory=self.memory,
            credit=self.credit,
            codec=self.agent.renderer.codec,
            window_tokens=self.updater.policy.window,
            memory_signal=memory_signal,
            custom_score=self.custom_score,
            own_advantages=self.own_advantages,
            grammar=self.agent.grammar,
        )


def train_rl(setup: RlSetup, settings: RlSettings, run: RunFolder, console: Console) -> None:
    """Run the steps that are left; a resumed run does what an unbroken one would have done.

    Raises:
        UserError: too few questions, or a step in which no rollout counts.
    """
    check_questions(setup.questions, settings)
    updater, policy = setup.updater, setup.updater.policy
    scoring = setup.scoring(settings.memory_signal)
    group_size = settings.rollouts_per_question
    decoding = DecodingSettings(temperature=settings.temperature)
    resumed = last_checkpoint(run, "rl")
    done = load_optimizer_state(resumed, updater.optimizer) if resumed else 0
    silence = load_silence(resumed) if resumed else ()

    def save(step: int) -> object:
        return save_state(run, "rl", step, policy, updater.optimizer, silence)

    with (
        StageProgress(console, "rl", settings.steps, SHOWN, done) as progress,
        Rescue(save, done, console, lambda: policy.version) as rescue,
    ):
        for step in range(done + 1, settings.steps + 1):
            clock = Clock()
            jobs, questions = rollout_jobs(
                setup.questions, setup.seed, step - 1, settings.questions_per_step, settings.rollouts_per_question
            )
            trajectories = asyncio.run(run_rollouts(setup.agent, setup.sampler, jobs, decoding))
            sampled = measures_of(setup.sampler)
            clock.lap("rollout")

            scored = score_batch(scoring, questions, trajectories, setup.scorer, setup.reference)
            batch = scored.counted(group_size, step)
            advantages = batch_advantages(batch, setup.credit, setup.memory, setup.own_advantages, silence)
            clock.lap("memory_reward")

            rows = training_rows(batch, advantages)
            updates = update_policy(updater, rows, settings, learning_rate(settings.optim, step - 1, settings.steps))
            silence = advantages.silence
            clock.lap("update")

            metrics = {**scored.metrics, **advantages.metrics, **updates, **sampled, **clock.seconds}
            if settings.log_rollouts_every and step % settings.log_rollouts_every == 0:
                facts = scored.facts_with(batch, advantages)
                save_rollouts(run.rollouts(step), trajectories, facts, advantages_by_turn(rows, len(trajectories)))
            run.log("rl", step, metrics)
            progress.step(step, metrics)
            due = step % settings.save_every == 0 or step == settings.steps
            if due:
                save(step)
            rescue.finished(step, saved=due)


def update_policy(
    updater: Updater, rows: Sequence[TrainRow], settings: RlSettings, lr: float
) -> dict[str, float | None]:
    """`updates_per_step` optimizer steps; all rows of a question are in the same one.

    When no token has any advantage and there is no KL term, the gradient is zero by construction: no step is made, and
    it is counted. Metrics are means over the steps; where no step says anything about one of `UPDATE_MEASURES` it is
    None.
    """
    share = settings.questions_per_step // settings.updates_per_step * settings.rollouts_per_question
    results: list[Mapping[str, float]] = []
    for update in range(settings.updates_per_step):
        mine = [row for row in rows if row.row.trajectory // share == update]
        silent = not any(value for row in mine for value in row.advantages)
        if silent and settings.loss.kl == "none":
            results.append({"update/skipped": 1.0})
        else:
            results.append(updater.rl_step(mine, lr))
    names = dict.fromkeys(name for result in results for name in result)
    means = {n: sum(found) / len(found) for n in names if (found := [r[n] for r in results if n in r])}
    made = len(results) - sum(result["update/skipped"] for result in results)
    unknown = {f"update/{name}": None for name in UPDATE_MEASURES}
    return {**unknown, **means, "update/optimizer_steps": made, "rows": float(len(rows))}


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


class Clock:
    """Seconds per part of a step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.monotonic()

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.seconds[f"seconds/{name}"] = now - self._last
        self._last = now
