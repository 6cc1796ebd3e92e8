"""What the doctor looks up on a machine; each is a function of its own, so that tests can give other answers."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from mempo.cluster.constraints import ModelShape
from mempo.cluster.model_size import PolicySize, policy_size
from mempo.cluster.verl_config import TRAINER
from mempo.cluster.verl_keys import listed_keys
from mempo.cluster.versions import VERL, installed, version_problems
from mempo.config import Config
from mempo.errors import UserError
from mempo.retrieval.client import HttpRetriever, token_from_environment
from mempo.storage.model_files import model_folder

_ASK_VERL = f"from verl.trainer.ppo.v1 import get_trainer_cls; print(get_trainer_cls({TRAINER!r}).__module__)"


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
    verl_keys: Callable[[], Mapping[str, Any] | None] = listed_keys
    plugins: Callable[[], list[str]] = _plugins
    trainer: Callable[[], str] = _trainer_of_verl
    gpu_bytes: Callable[[], list[int]] = _gpu_bytes
    reaches: Callable[[str, int], bool] = _reaches
    healthy: Callable[[Config], None] = _healthy
    shape: Callable[[str], ModelShape] = _shape
    size: Callable[[str], PolicySize | None] = policy_size
    writable: Callable[[Path], bool] = _writable
