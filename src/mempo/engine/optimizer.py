"""AdamW, its learning rate by step, and its state as safetensors."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from mempo.config.train import OptimSettings


def learning_rate(settings: OptimSettings, step: int, total_steps: int) -> float:
    """The rate of step `step` (0-based): a function of the step alone, so a resumed run has the same."""
    if step < settings.warmup_steps:
        return settings.lr * (step + 1) / settings.warmup_steps
    if settings.schedule == "constant":
        return settings.lr
    done = (step - settings.warmup_steps) / max(total_steps - settings.warmup_steps, 1)
    share = 1 - done if settings.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
    return settings.lr * (settings.min_lr_ratio + (1 - settings.min_lr_ratio) * share)


class CombinedOptimizer:
    """Several torch optimizers as one; parameters are numbered through."""

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        self._parts = tuple(parts)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [group for part in self._parts for group in part.param_groups]

    def step(self) -> None:
        for part in self._parts:
            part.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for part in self._parts:
            part.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        state: dict[int, Any] = {}
        for first, part in self._numbered():
            state.update({first + index: entries for index, entries in part.state_dict()["state"].items()})
        return {"state": state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for first, part in self._numbered():
            whole = part.state_dict()
            count = sum(len(group["params"]) for group in whole["param_groups"])
            found = state_dict["state"]
            whole["state"] = {i - first: entries for i, entries in found.items() if first <= i < first + count}
            part.load_state_dict(whole)

    def _numbered(self) -> Iterator[tuple[int, torch.optim.Optimizer]]:
        first = 0
        for part in self._parts:
            yield first, part
            first += sum(len(group["params"]) for group in part.param_groups)


AnyOptimizer = torch.optim.Optimizer | CombinedOptimizer


def make_optimizer(model: torch.nn.Module, settings: OptimSettings) -> AnyOptimizer:
    """The optimizer of all trainable parameters. `lr_scale` of a group times the step's rate is the group's rate."""
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    matrices = [p for name, p in named if settings.kind == "muon" and p.ndim == 2 and "layers." in name]
    inside = {id(p) for p in matrices}
    rest = [p for _, p in named if id(p) not in inside]
    betas = (settings.beta1, settings.beta2)
    adamw = [torch.optim.AdamW(rest, lr=settings.lr, betas=betas, weight_decay=settings.weight_decay)] if rest else []
    if not matrices:
        return adamw[0]
    muon = torch.optim.Muon(matrices, lr=settings.muon_lr, weight_decay=settings.weight_decay)
    for group in muon.param_groups:
        group["lr_scale"] = settings.muon_lr / settings.lr
    return CombinedOptimizer([muon, *adamw])  # adapters are matrices inside the layers, all of them


def save_optimizer(optimizer: AnyOptimizer, path: Path) -> None:
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


def load_optimizer(optimizer: AnyOptimizer, path: Path) -> None:
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
