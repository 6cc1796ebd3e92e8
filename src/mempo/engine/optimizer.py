"""AdamW, its learning rate by step, and its state as safetensors."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field
from safetensors.torch import load_file, save_file

from mempo.settings import Settings


class OptimSettings(Settings):
    """The optimizer of one stage."""

    lr: float = Field(default=1e-6, gt=0, allow_inf_nan=False)
    """Peak learning rate."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps of linear rise from 0."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """What follows the warm-up: to zero at the last step, or flat."""
    min_lr_ratio: float = Field(default=0.0, ge=0, le=1)
    """Where `linear` and `cosine` end, as a share of `lr`."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.999, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    micro_batch_tokens: int = Field(default=16_384, ge=1)
    """Padded tokens of one forward and backward pass; changes memory and speed, never the result."""


def learning_rate(settings: OptimSettings, step: int, total_steps: int) -> float:
    """The rate of step `step` (0-based): a function of the step alone, so a resumed run has the same."""
    if step < settings.warmup_steps:
        return settings.lr * (step + 1) / settings.warmup_steps
    if settings.schedule == "constant":
        return settings.lr
    done = (step - settings.warmup_steps) / max(total_steps - settings.warmup_steps, 1)
    share = 1 - done if settings.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
    return settings.lr * (settings.min_lr_ratio + (1 - settings.min_lr_ratio) * share)


def make_optimizer(model: torch.nn.Module, settings: OptimSettings) -> torch.optim.AdamW:
    parameters = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.AdamW(
        parameters, lr=settings.lr, betas=(settings.beta1, settings.beta2), weight_decay=settings.weight_decay
    )


def save_optimizer(optimizer: torch.optim.Optimizer, path: Path) -> None:
    """Tensors by parameter number and name; plain numbers as JSON in the header."""
    state = optimizer.state_dict()["state"]
    tensors: dict[str, torch.Tensor] = {}
    numbers: dict[str, Any] = {}
    for index, entries in state.items():
        for name, value in entries.items():
            if isinstance(value, torch.Tensor):
                tensors[f"{index}.{name}"] = value.contiguous()
            else:
                numbers[f"{index}.{name}"] = value
    save_file(tensors, path, metadata={"numbers": json.dumps(numbers)})


def load_optimizer(optimizer: torch.optim.Optimizer, path: Path) -> None:
    """Undo `save_optimizer`."""
    from safetensors import safe_open

    state: dict[int, dict[str, Any]] = {}
    for key, tensor in load_file(path).items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = tensor
    with safe_open(path, framework="pt") as file:
        numbers = json.loads((file.metadata() or {}).get("numbers", "{}"))
    for key, value in numbers.items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    whole = optimizer.state_dict()
    whole["state"] = state
    optimizer.load_state_dict(whole)
