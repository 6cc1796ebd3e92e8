"""Supervised fine-tuning: maximum likelihood on generated tokens, rows as the context makes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from rich.console import Console

from mempo.config.rewards import ProbeSettings
from mempo.config.train import SftSettings
from mempo.engine.optimizer import learning_rate
from mempo.engine.policy import Policy
from mempo.engine.update import Updater
from mempo.errors import ConfigError
from mempo.progress import Progress
from mempo.rewards.probe import build_probe
from mempo.rollout.tokenizer import Tokenizer
from mempo.rollout.trajectory import Row, Segment, rows_of
from mempo.storage.run_folder import RunFolder
from mempo.train.batch import take
from mempo.train.checkpoint import Rescue, last_checkpoint, load_optimizer_state, save_state
from mempo.train.expert_rollouts import Demo
from mempo.train.finite import FiniteSteps

RowSource = Callable[[int], Sequence[Row]]
"""`rows_at(step)`: the rows of a step, the same whenever it is asked."""


def probe_row(tokenizer: Tokenizer, demo: Demo, turn_index: int, settings: ProbeSettings) -> Row | None:
    """`[question][note] → probe`, the probe asking for what this note allows to answer."""
    turn = demo.trajectory.turns[turn_index]
    answer = demo.answers[turn_index]
    if turn.note_ids is None or answer is None:
        return None
    probe = build_probe(tokenizer, dataclasses.replace(demo.question, probe=answer), settings)
    if probe is None:
        return None
    prefix = demo.trajectory.question_ids + turn.note_ids
    return Row(0, prefix + probe.ids, (Segment(turn_index, len(prefix), len(prefix) + len(probe.ids)),))


def demo_rows(demos: Sequence[Demo]) -> list[Row]:
    return [row for i, demo in enumerate(demos) for row in rows_of(demo.trajectory, i)]


def mixed_batches(rows: Sequence[Row], probes: Sequence[Row], settings: SftSettings, seed: int) -> RowSource:
    """Batches of demonstration rows with a fixed share of probe rows; every row is seen before any is seen again."""
    # At least one row of a batch tells an episode, however small the batch.
    per_batch = min(round(settings.batch_rows * settings.probe_share), settings.batch_rows - 1) if probes else 0
    sources = [(rows, settings.batch_rows - per_batch, "rows"), (probes, per_batch, "probes")]
    if not rows:
        raise ConfigError("sft has no rows to learn from; the demonstrations are empty")

    def rows_at(step: int) -> list[Row]:
        return [item for items, count, name in sources for item in take(items, step * count, count, f"{seed} {name}")]

    return rows_at


def train_sft(policy: Policy, rows_at: RowSource, settings: SftSettings, run: RunFolder, console: Console) -> None:
    """Run the steps that are left and save the last. A resumed run does what an unbroken one would have done."""
    updater = Updater(policy, settings.optim)
    resumed = last_checkpoint(run, "sft")
    done = load_optimizer_state(resumed, updater.optimizer) if resumed else 0

    finite = FiniteSteps(run, "sft", done)

    def save(step: int) -> object:
        return save_state(run, "sft", step, policy, updater.optimizer, keep_every=settings.keep_every)

    with (
        Progress(console, "sft", settings.steps, "step", done, history=True) as progress,
        Rescue(save, done, console, lambda: policy.version) as rescue,
    ):
        for step in range(done, settings.steps):
            lr = learning_rate(settings.optim, step, settings.steps)
            metrics = updater.sft_step(
                rows_at(step), lr, lambda part, of: progress.part(f"micro-batch {part}/{of}") if of > 1 else None
            )
            run.log("sft", step + 1, metrics)
            progress.step(step + 1, f"loss {metrics['loss']:.3g}" if "loss" in metrics else "")
            every = [settings.save_every, *([settings.keep_every] if settings.keep_every else [])]
            good = finite.step(step + 1, metrics)
            due = step + 1 == settings.steps or (good and any((step + 1) % n == 0 for n in every))
            rescue.finished(step + 1, due=due)
