"""What the doctor looks up on a machine; each is a function of its own, so that tests can give other answers."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from mempo.cluster.model_shape import DecoderShape, ModelShape, shape_of
from mempo.cluster.verl_config import TRAINER
from mempo.cluster.versions import VERL, installed, version_problems
from mempo.config import Config
from mempo.errors import UserError
from mempo.retrieval.client import HttpRetriever, token_from_environment
from mempo.storage.model_files import model_folder

_ASK_VERL = f"from verl.trainer.ppo.v1 import get_trainer_cls; print(get_trainer_cls({TRAINER!r}).__module__)"


_ASK_RAY = """
import json, subprocess, sys
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

def look():
    from importlib.metadata import entry_points
    from mempo.cluster.versions import version_problems
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(query, capture_output=True, text=True, timeout=60).stdout
    except OSError:
        said = ""
    problems = version_problems()
    if not any(point.value == "mempo.cluster.plugin" for point in entry_points(group="verl.plugins")):
        problems.append("no package there tells verl of mempo")
    return [int(line) << 20 for line in said.split()], problems

ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
nodes = [node for node in ray.nodes() if node["Alive"]]
task = ray.remote(num_cpus=0, max_retries=0)(look)
on = [task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], False)) for node in nodes]
asked = [one.remote() for one in on]
found = []
for node, answer in zip(nodes, asked):
    try:
        gpu_bytes, problems = ray.get(answer, timeout=120)
    except Exception as error:
        gpu_bytes, problems = [], ["it does not answer (" + " ".join(str(error).split())[:200] + ")"]
    found.append([node["NodeManagerAddress"], int(node["Resources"].get("GPU", 0)), gpu_bytes, problems])
print("nodes " + json.dumps(found))
"""


@dataclass(frozen=True)
class Node:
    """One machine of a Ray cluster. `gpus`: those that Ray gives out; `gpu_bytes`: of each that the driver sees;
    `problems`: versions that are other ones there."""

    address: str
    gpus: int
    gpu_bytes: tuple[int, ...] = ()
    problems: tuple[str, ...] = ()


def _nodes(address: str) -> list[Node]:
    """Asked in a process of its own, which joins the cluster for a moment.

    Raises:
        UserError: it could not; with the last line that it said.
    """
    ended = subprocess.run(
        [sys.executable, "-c", _ASK_RAY, address], capture_output=True, text=True, timeout=600, check=False
    )
    told = [line.removeprefix("nodes ") for line in ended.stdout.splitlines() if line.startswith("nodes ")]
    if not told:
        said = ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"]
        raise UserError(f"the Ray cluster {address} cannot be asked ({said[-1][:300]}); look at ray status")
    return [Node(at, gpus, tuple(held), tuple(problems)) for at, gpus, held, problems in json.loads(told[-1])]


def _plugins() -> list[str]:
    return [point.value for point in entry_points(group="verl.plugins")]


def _trainer_of_verl() -> str:
    """The module of the trainer that verl knows under our name, or what it said instead; asked in a process of its own,
    since importing verl takes long and changes the process."""
    ended = subprocess.run([sys.executable, "-c", _ASK_VERL], capture_output=True, text=True, timeout=600, check=False)
    said = (ended.stdout if ended.returncode == 0 else ended.stderr).strip().splitlines()
    return said[-1] if said else f"exit code {ended.returncode}"


def _gpu_bytes() -> list[int]:
    import torch

    count = torch.cuda.device_count()
    return [torch.cuda.get_device_properties(index).total_memory for index in range(count)]


def _reaches(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=5):
            return True
    except OSError:
        return False


def _healthy(config: Config) -> None:
    assert config.data.server is not None
    with HttpRetriever.of(config.data.server, config.data.client, token=token_from_environment()) as retriever:
        retriever.health()


def _shape(path: str) -> ModelShape:
    from transformers import AutoConfig

    config: Any = AutoConfig.from_pretrained(model_folder(path, weights=False))
    if not any(hasattr(part, "num_key_value_heads") for part in (config, config.get_text_config())):
        raise UserError(
            f"{path} is a {config.model_type}, whose configuration lacks num_key_value_heads, which verl {VERL} reads; "
            "take a model of another family, such as Qwen, Llama or Mistral"
        )
    return ModelShape.of(config)


def _writable(folder: Path) -> bool:
    existing: Any = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    return existing.is_dir() and os.access(existing, os.W_OK)


@dataclass(frozen=True)
class Machine:
    """What is looked up on this machine; tests give other answers."""

    version_problems: Callable[[], list[str]] = version_problems
    installed: Callable[[str], str | None] = installed
    plugins: Callable[[], list[str]] = _plugins
    trainer: Callable[[], str] = _trainer_of_verl
    gpu_bytes: Callable[[], list[int]] = _gpu_bytes
    reaches: Callable[[str, int], bool] = _reaches
    nodes: Callable[[str], list[Node]] = _nodes
    healthy: Callable[[Config], None] = _healthy
    shape: Callable[[str], ModelShape] = _shape
    decoder: Callable[[str], DecoderShape] = shape_of
    writable: Callable[[Path], bool] = _writable
