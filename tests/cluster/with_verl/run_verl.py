"""Runs of stock verl on `cpu_node.py`, from one of our configurations as the launcher translates it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mempo.build import load_data
from mempo.cluster.launch import command
from mempo.cluster.questions import write_questions
from mempo.cluster.verl_config import verl_config, verl_yaml
from mempo.config import Resolved, resolve
from mempo.engine.model import save_policy
from mempo.runs.files import write_whole
from mempo.runs.folder import RunFolder
from tests import tiny
from tests.cluster.with_verl.cpu_node import NAME

ROOT = Path(__file__).parents[3]
QUESTIONS, ROLLOUTS, UPDATES = 4, 4, 2
"""Of a step: questions, rollouts of each, optimizer steps."""


@dataclass(frozen=True)
class VerlRun:
    """A run that ended well: its folder, our measures by step, and what it printed."""

    folder: RunFolder
    resolved: Resolved
    output: str

    def measures(self, stage: str, step: int) -> dict[str, Any]:
        (found,) = [line for line in self.folder.metrics() if (line["stage"], line["step"]) == (stage, step)]
        return found

    def checkpoint(self, step: int) -> Path:
        return self.folder.path / "checkpoints" / f"global_step_{step}"


def make_inputs(folder: Path) -> list[str]:
    """A tiny random model, a corpus and questions; returns the settings that name them."""
    folder.mkdir(parents=True)
    codec = tiny.chat_codec("chatml", tags="added")
    # Some rows to spare: a tokenizer that is loaded again may bring a token of its family along.
    save_policy(tiny.tiny_llama(codec, vocab_size=codec.size + 8), folder / "model")
    lands = range(2 * QUESTIONS)
    documents = [{"id": str(i), "contents": f'"City {i}"\nThe capital of land {i} is city {i}.'} for i in lands]
    questions = [{"id": f"q{i}", "question": f"What is the capital of land {i}?", "answer": f"city {i}"} for i in lands]
    for name, rows in (("corpus", documents), ("questions", questions)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return [
        *(f"model.path={folder}/model", f"data.corpus={folder}/corpus.jsonl"),
        *(f"data.train={folder}/questions.jsonl", f"data.test={folder}/questions.jsonl"),
        *(f"rl.questions_per_step={QUESTIONS}", f"rl.rollouts_per_question={ROLLOUTS}"),
        *(f"rl.updates_per_step={UPDATES}", "rl.steps=2", "rl.save_every=1", "rl.probe_check_questions=4"),
        *("rl.loss.kl=k3", "rl.loss.kl_coef=0.01", "rl.optim.lr=0.001", "memory.baseline=visible"),
        *("agent.tools=[search]", "reward.score=tests.cluster.with_verl.scripted:score", "evaluate.questions=2"),
        *("limits.max_context_tokens=512", "limits.max_obs_tokens=64", "limits.max_turns=8"),
        *("cluster.micro_batch_tokens=1024", "cluster.agent_workers=1", "cluster.keep_checkpoints=5"),
    ]


def run(settings: list[str], output: Path, ranks: int, timeout_s: float = 600) -> VerlRun:
    """Start, or go on where the folder holds checkpoints.

    Raises:
        RuntimeError: it did not end well; the message is the end of what it printed.
    """
    resolved = resolve(None, [*settings, f"output={output}", f"cluster.gpus_per_node={ranks}"])
    config, plain = resolved.config, resolved.plain()
    folder = RunFolder(output)
    data = load_data(config, output / "data")
    write_questions(output / "data" / "train.parquet", data.train, "lands")
    write_questions(output / "data" / "test.parquet", data.test, "lands")
    made = verl_config(config, plain, output, environment={})
    _for_cpu(made, ranks)
    write_whole(output / "verl.yaml", verl_yaml(made))
    double = {
        "VERL_USE_EXTERNAL_MODULES": "tests.cluster.with_verl.cpu_node",
        "VERL_ENGINE_DEVICE": "cuda",
        "VERL_ENGINE_VENDOR": "nvidia",
        "MEMPO_CPU_NODE": "1",
    }
    quiet = {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run(
        command(output),
        env={**os.environ, **double, **quiet, "PYTHONPATH": str(ROOT), "HYDRA_FULL_ERROR": "1"},
        cwd=output,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command(output))} ended with {done.returncode}:\n{done.stdout[-6000:]}")
    return VerlRun(folder, resolved, done.stdout)


def _for_cpu(made: dict[str, Any], ranks: int) -> None:
    """What a CPU needs otherwise: another rollout server, no compiling, small queues, ranks in the place of GPUs."""
    engine = {"use_torch_compile": False}
    policy = made["actor_rollout_ref"]
    policy["rollout"]["name"] = NAME
    policy["actor"] |= engine
    policy["actor"]["fsdp_config"] |= engine
    policy["ref"] |= engine
    policy["ref"]["fsdp_config"] |= engine
    made["trainer"]["device"] = "cpu"
    made["transfer_queue"] = {"backend": {"SimpleStorage": {"num_data_storage_units": 1, "total_storage_size": 4096}}}
    made["ray_kwargs"] = {"ray_init": {"num_gpus": ranks, "num_cpus": 32, "include_dashboard": False}}


if __name__ == "__main__":
    where = Path(sys.argv[1]).absolute()
    inputs = make_inputs(where / "inputs")
    for ranks in map(int, sys.argv[2:]):
        run(inputs, where / f"run{ranks}", ranks)
