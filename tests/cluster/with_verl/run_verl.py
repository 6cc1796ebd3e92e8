"""Runs of stock verl on `cpu_node.py`, from one of our configurations as the launcher translates it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from mempo.cluster.launch import launch
from mempo.cluster.verl_config import put
from mempo.config import Resolved, resolve
from mempo.config.yaml_text import dump_yaml
from mempo.engine.model import save_policy
from mempo.storage.run_folder import RunFolder
from tests import tiny
from tests.cluster.with_verl.cpu_node import NAME

ROOT = Path(__file__).parents[3]
CHECKOUT = os.pathsep.join([str(ROOT), str(ROOT / "src")])
"""PYTHONPATH of a run's processes: they import this checkout, wherever the environment's own `mempo` comes from."""
DOUBLE = {
    "VERL_USE_EXTERNAL_MODULES": "tests.cluster.with_verl.cpu_node",
    "VERL_ENGINE_DEVICE": "cuda",
    "VERL_ENGINE_VENDOR": "nvidia",
    "MEMPO_CPU_NODE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""Variables that make every process of a run load the double, and keep it quiet."""
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
    tokenizer = tiny.chat_tokenizer("chatml", tags="added")
    # Some rows to spare: a tokenizer that is loaded again may bring a token of its family along.
    save_policy(tiny.tiny_llama(tokenizer, vocab_size=tokenizer.size + 8), folder / "model")
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
        "memory.fade_batches=null",  # no group is silent: faded, notes would earn nothing
        *("agent.tools=[search]", "reward.score=tests.cluster.with_verl.scripted:score", "evaluate.questions=2"),
        *("limits.max_context_tokens=512", "limits.max_obs_tokens=64", "limits.max_turns=8"),
        *("cluster.micro_batch_tokens=1024", "cluster.agent_workers=1", "cluster.keep_checkpoints=5"),
    ]


def run(
    settings: list[str],
    output: Path,
    ranks: int,
    resume: bool = False,
    timeout_s: float = 1800,
    variables: Mapping[str, str] | None = None,
) -> VerlRun:
    """Launch, and wait for the end. `variables` of the environment reach every process.

    Raises:
        RuntimeError: it did not end well; the message is the end of what it printed.
    """
    resolved = resolve(None, [*settings, f"output={output}", f"cluster.gpus_per_node={ranks}"])
    printed: list[str] = []

    def runner(command: Sequence[str], environment: Mapping[str, str]) -> int:
        made = yaml.safe_load((output / "verl.yaml").read_text("utf-8"))
        for key, value in _on_cpu(ranks).items():  # past the check of cluster.verl, which knows GPUs alone
            put(made, key, value)
        (output / "verl.yaml").write_text(dump_yaml(made), encoding="utf-8")
        done = subprocess.run(
            command,
            env={**environment, **DOUBLE, **(variables or {}), "PYTHONPATH": CHECKOUT},
            cwd=output,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        printed.append(done.stdout)
        return done.returncode

    code = launch(resolved, Console(quiet=True), resume=resume, skip_checks=True, runner=runner)
    if code:
        raise RuntimeError(f"verl ended with {code}:\n{printed[0][-6000:]}")
    return VerlRun(RunFolder(output), resolved, printed[0])


def _on_cpu(ranks: int) -> dict[str, Any]:
    """What a CPU needs otherwise: another rollout server, no compiling, small queues, ranks in the place of GPUs."""
    engine = [f"{role}{part}.use_torch_compile" for role in ("actor", "ref") for part in ("", ".fsdp_config")]
    queue = "transfer_queue.backend.SimpleStorage"
    ray = "ray_kwargs.ray_init"
    return {
        "actor_rollout_ref.rollout.name": NAME,
        **{f"actor_rollout_ref.{key}": False for key in engine},
        "trainer.device": "cpu",
        f"{queue}.num_data_storage_units": 1,
        f"{queue}.total_storage_size": 4096,
        f"{ray}.num_gpus": ranks,
        f"{ray}.num_cpus": 32,
        f"{ray}.include_dashboard": False,
    }


if __name__ == "__main__":
    where = Path(sys.argv[1]).absolute()
    inputs = make_inputs(where / "inputs")
    for ranks in map(int, sys.argv[2:]):
        run(inputs, where / f"run{ranks}", ranks)
