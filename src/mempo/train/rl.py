"""Reinforcement learning: the main loop.

Sample, score, advantages, rows, update: questions are rolled out (`run_rollouts`); every rollout gets a score and every
note its memory reward (`score_batch`); both become advantages (`batch_advantages`), which are laid out once, on the
tokens of the training rows (`training_rows`); and an optimizer step goes over all rows of its questions
(`update_policy`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from rich.console import Console

from mempo.config.rollout import DecodingSettings
from mempo.config.train import RlSettings
from mempo.engine.optimizer import learning_rate
from mempo.engine.update import TrainRow, Updater
from mempo.errors import UserError
from mempo.progress import Progress
from mempo.rollout.agent import Agent, run_rollouts
from mempo.rollout.interfaces import Sampler, Scorer
from mempo.rollout.question import Question
from mempo.storage.rollouts import save_rollouts
from mempo.storage.run_folder import RunFolder
from mempo.train.advantages import batch_advantages
from mempo.train.batch import advantages_by_turn, rollout_jobs, training_rows
from mempo.train.checkpoint import Rescue, last_checkpoint, load_optimizer_state, load_silence, save_state
from mempo.train.finite import FiniteSteps
from mempo.train.score_batch import Scoring, score_batch

SHOWN = {
    "score": "score",
    "em": "em",
    "memory/p_mem": "P(mem)",
    "note_tokens": "note",
    "turns": "turns",
    "searches": "searches",
}
"""The measures that a person sees of each step, and how they are called there."""
UPDATE_MEASURES = (
    *("loss", "policy", "ratio", "clip_fraction", "k3", "k3_old", "entropy", "grad_norm", "lr"),
    *("padding_share", "prefix_share", "not_finite"),
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
    scoring: Scoring
    seed: int
    reference: Scorer | None = None


def train_rl(setup: RlSetup, settings: RlSettings, run: RunFolder, console: Console) -> None:
    """Run the steps that are left; a resumed run does what an unbroken one would have done.

    Raises:
        UserError: too few questions, or a step in which no rollout counts.
    """
    check_questions(setup.questions, settings)
    updater, policy = setup.updater, setup.updater.policy
    scoring = replace(setup.scoring, memory_signal=settings.memory_signal, max_failed_share=settings.max_failed_share)
    group_size = settings.rollouts_per_question
    decoding = DecodingSettings(temperature=settings.temperature)
    resumed = last_checkpoint(run, "rl")
    done = load_optimizer_state(resumed, updater.optimizer) if resumed else 0
    silence = load_silence(resumed) if resumed else ()
    finite = FiniteSteps(run, "rl", done)

    def save(step: int) -> object:
        return save_state(run, "rl", step, policy, updater.optimizer, silence)

    with (
        Progress(console, "rl", settings.steps, "step", done, history=True) as progress,
        Rescue(save, done, console, lambda: policy.version) as rescue,
    ):
        for step in range(done + 1, settings.steps + 1):
            clock = Clock()
            jobs, questions = rollout_jobs(
                setup.questions, setup.seed, step - 1, settings.questions_per_step, settings.rollouts_per_question
            )
            trajectories = asyncio.run(
                run_rollouts(
                    setup.agent,
                    setup.sampler,
                    jobs,
                    decoding,
                    lambda tally: progress.part(f"rollouts {tally.done}/{tally.total}, {tally.note}"),
                )
            )
            sampled = measures_of(setup.sampler)
            clock.lap("rollout")

            progress.part("scoring")
            scored = score_batch(scoring, questions, trajectories, setup.scorer, setup.reference)
            batch = scored.counted(group_size, step)
            advantages = batch_advantages(batch, scoring.advantages, scoring.memory, scoring.own_advantages, silence)
            clock.lap("memory_reward")

            rows = training_rows(batch, advantages)
            lr = learning_rate(settings.optim, step - 1, settings.steps)
            updates = update_policy(updater, rows, settings, lr, progress.part)
            clock.lap("update")

            metrics = {**scored.metrics, **advantages.metrics, **updates, **sampled, **clock.seconds}
            if settings.log_rollouts_every and step % settings.log_rollouts_every == 0:
                facts = scored.records_with(batch, advantages)
                save_rollouts(run.rollouts(step), trajectories, facts, advantages_by_turn(rows, len(trajectories)))
            run.log("rl", step, metrics)
            progress.step(step, step_summary(metrics))
            silence = advantages.silence  # not earlier: a step that fails before this is not done
            good = finite.step(step, metrics)
            rescue.finished(step, due=(good and step % settings.save_every == 0) or step == settings.steps)


def update_policy(
    updater: Updater,
    rows: Sequence[TrainRow],
    settings: RlSettings,
    lr: float,
    tell: Callable[[str], None] = lambda part: None,
) -> dict[str, float | None]:
    """`updates_per_step` optimizer steps; all rows of a question are in the same one. `tell` hears how far they are.

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
            name = f"update {update + 1}/{settings.updates_per_step}, micro-batch"
            results.append(updater.rl_step(mine, lr, lambda done, of, name=name: tell(f"{name} {done}/{of}")))
    names = dict.fromkeys(name for result in results for name in result)
    means = {n: sum(found) / len(found) for n in names if (found := [r[n] for r in results if n in r])}
    made = len(results) - sum(result["update/skipped"] for result in results)
    unknown = {f"update/{name}": None for name in UPDATE_MEASURES}
    return {**unknown, **means, "update/optimizer_steps": made, "rows": float(len(rows))}


def step_summary(metrics: Mapping[str, float | None]) -> str:
    """A step for a person who looks over: what is known of it, as short as it goes."""
    parts = [f"{name} {value:.3g}" for key, name in SHOWN.items() if (value := metrics.get(key)) is not None]
    failed = metrics.get("errors") or 0
    return "  ".join([*parts, *([f"failed {failed:.0f}"] if failed else [])])


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
            f"questions; take more, or set rl.questions_per_step={max(len(questions), 1)}"
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
