"""Supervised fine-tuning: maximum likelihood on generated tokens, rows as the context makes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from pydantic import Field
from rich.console import Console

from mempo.demos import Demo
from mempo.engine.model import Policy
from mempo.engine.optimizer import OptimSettings, learning_rate
from mempo.engine.update import Updater
from mempo.errors import ConfigError
from mempo.expert import ExpertSettings
from mempo.rewards.probe import ProbeSettings, build_probe
from mempo.runs.folder import RunFolder
from mempo.settings import Settings
from mempo.tokens import Codec
from mempo.train.batch import take
from mempo.train.progress import StageProgress
from mempo.train.state import last_checkpoint, load_optimizer_state, save_state
from mempo.trajectory import Row, Segment, rows_of

RowSource = Callable[[int], Sequence[Row]]
"""`rows_at(step)`: the rows of a step, the same whenever it is asked."""


class SftSettings(Settings):
    """The cold start."""

    steps: int = Field(default=0, ge=0)
    """Optimizer steps; 0 skips the stage."""
    batch_rows: int = Field(default=32, ge=1)
    demos: int = Field(default=500, ge=1)
    """Episodes of the expert."""
    full_share: float = Field(default=0.2, ge=0, le=1)
    """Share of the episodes that are told with the full history, so that it is no foreign text to the policy."""
    probe_share: float = Field(default=0.2, ge=0, lt=1)
    """Share of the rows that are probe samples, `[question][note] → answer`: without them the memory signal asks for
    something the policy has never seen."""
    lossless_probes: bool = True
    """Probe samples from episodes with complete notes, whatever `expert.loss` is."""
    expert: ExpertSettings = ExpertSettings()
    optim: OptimSettings = OptimSettings(lr=1e-5, warmup_steps=10, schedule="cosine")
    save_every: int = Field(default=100, ge=1)
    keep_every: int | None = Field(default=None, ge=1)
    """Keep the checkpoint of every so many steps for good: policies of growing strength that other runs can start from
    (`start`). None: the last two stay."""


def probe_row(codec: Codec, demo: Demo, turn_index: int, settings: ProbeSettings) -> Row | None:
    """`[question][note] → probe`, the probe asking for what this note allows to answer."""
    turn = demo.trajectory.turns[turn_index]
    answer = demo.answers[turn_index]
    if turn.note_ids is None or answer is None:
        return None
    probe = build_probe(codec, dataclasses.replace(demo.question, probe=answer), settings)
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
    with StageProgress(console, "sft", settings.steps, ("loss",), done) as progress:
        for step in range(done, settings.steps):
            lr = learning_rate(settings.optim, step, settings.steps)
            metrics = updater.sft_step(rows_at(step), lr)
            run.log("sft", step + 1, metrics)
            progress.step(step + 1, metrics)
            due = [settings.save_every, *([settings.keep_every] if settings.keep_every else [])]
            if step + 1 == settings.steps or any((step + 1) % every == 0 for every in due):
                save_state(run, "sft", step + 1, policy, updater.optimizer, keep_every=settings.keep_every)
