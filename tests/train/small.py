"""A whole run in seconds: a toy policy, an environment of a few names, a handful of steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from safetensors.torch import load_file

from mempo.config import Resolved, resolve
from mempo.rollout.question import Question
from mempo.rollout.trajectory import Trajectory
from mempo.run.train import train

SMALL = (
    "model.threads=1",
    "data.environment_options.subset={kinds: [country], attributes: [capital, currency], max_entities: 30, "
    "max_words: 1, max_letters: 9, ascii_only: true}",
    "data.objectives=[2, 3]",
    "data.test_objectives=null",
    "data.train_questions=24",
    "limits.max_turn_tokens=24",
    "limits.max_turns=4",
    "toy.warmup_steps=2",
    "toy.copy_rows=8",
    "sft.steps=6",
    "sft.lossy_steps=null",
    "sft.batch_rows=8",
    "sft.demos=10",
    "sft.save_every=3",
    "rl.steps=6",
    "rl.questions_per_step=2",
    "rl.rollouts_per_question=4",
    "rl.save_every=3",
    "rl.log_rollouts_every=1",
    "rl.loss={}",
    "rl.optim.lr=5e-4",
    # A policy that has learnt nothing answers nothing; this reward has something to tell its rollouts apart by.
    "reward=tests.train.small:evenness",
    "reward.format_gate=false",
    "evaluate.questions=2",
)


def evenness(question: Question, trajectory: Trajectory) -> float:
    """The share of even ids among the sampled ones."""
    ids = [i for turn in trajectory.turns for i in turn.generated_ids]
    return sum(i % 2 == 0 for i in ids) / max(len(ids), 1)


def small(output: Path, *overrides: str) -> Resolved:
    return resolve("quickstart", [*SMALL, f"output={output}", *overrides])


def quiet() -> Console:
    return Console(quiet=True)


def run(output: Path, *overrides: str, resume: bool = False) -> Path:
    return train(small(output, *overrides), resume, quiet())


def metrics(folder: Path, stage: str) -> list[dict[str, Any]]:
    """The measures of a stage, without what a clock says."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    return [
        {key: value for key, value in line.items() if not key.startswith("seconds/")}
        for line in lines
        if line["stage"] == stage
    ]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def assert_same_weights(a: Path, b: Path) -> None:
    first, second = weights(a), weights(b)
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name
