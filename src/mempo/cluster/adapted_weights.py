"""Adding an adapter to the weights it belongs to, file by file: no model is made, one file is in memory at a time.

verl writes the state of a peft model under peft's names; a plain model would find none of its weights there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from mempo.errors import UserError

INDEX = "model.safetensors.index.json"
_PREFIX = "base_model.model."


def tensor_shapes(files: Iterable[Path]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all tensors, from the headers alone.

    Raises:
        UserError: a file that is not whole.
    """
    shapes = {}
    for file in files:
        with _opened(file) as tensors:
            shapes |= {key: tuple(tensors.get_slice(key).get_shape()) for key in tensors.keys()}  # noqa: SIM118
    return shapes


def is_adapted(names: Iterable[str]) -> bool:
    return any(".lora_" in name for name in names)


def plain_name(name: str) -> str:
    """`base_model.model.X.base_layer.weight` is X.weight of a model without adapters."""
    return name.removeprefix(_PREFIX).replace(".base_layer.", ".")


def write_merged(
    files: Sequence[Path], adapter: Sequence[Path], rank: int, scale: float, out: Path, leave_out: Iterable[str] = ()
) -> None:
    """Write every tensor of `files` under its plain name into `out`, W + scale · B A where there is an adapter.

    The sum is made in float32 and kept in the precision of W. `adapter` are further files that A and B may lie in;
    `leave_out` are plain names that are not written.

    Raises:
        UserError: an adapter of another kind or rank, or one that belongs to no weight.
    """
    with ExitStack() as stack:
        opened: dict[Path, Any] = {
            file: stack.enter_context(_opened(file)) for file in dict.fromkeys((*files, *adapter))
        }
        place = {key: tensors for tensors in opened.values() for key in tensors.keys()}  # noqa: SIM118
        pairs = _pairs(place, rank)
        skip, weight_map, total = set(leave_out), {}, 0
        for file in files:
            merged = {}
            for key in opened[file].keys():  # noqa: SIM118
                name = plain_name(key)
                if ".lora_" in key or name in skip:
                    continue
                weight = opened[file].get_tensor(key)
                pair = pairs.pop(name.removesuffix(".weight"), None) if name.endswith(".weight") else None
                if pair is not None:
                    a, b = (place[end].get_tensor(end).float() for end in pair)
                    weight = (weight.float() + scale * (b @ a)).to(weight.dtype)
                merged[name] = weight.contiguous()
            if merged:
                save_file(merged, out / file.name, metadata={"format": "pt"})
                weight_map |= dict.fromkeys(merged, file.name)
                total += sum(tensor.nbytes for tensor in merged.values())
    if pairs:
        raise UserError(f"the adapter has weights for {next(iter(pairs))}, which is not among the model's weights")
    if len(set(weight_map.values())) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (out / INDEX).write_text(json.dumps(index, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _pairs(place: dict[str, Any], rank: int) -> dict[str, tuple[str, str]]:
    """`{module: (name of A, name of B)}`, modules under their plain names."""
    halves: dict[str, dict[str, str]] = {}
    for key in place:
        if ".lora_" not in key:
            continue
        module, _, rest = plain_name(key).partition(".lora_")
        half = rest.removesuffix(".weight").removesuffix(".default")
        if half not in ("A", "B"):
            raise UserError(f"the adapter holds {key}, which is not a plain low-rank pair, so it cannot be merged here")
        halves.setdefault(module, {})[half] = key
    pairs = {}
    for module, found in halves.items():
        if len(found) != 2:
            raise UserError(
                f"the adapter of {module} has only its half {next(iter(found))}; the checkpoint is not whole"
            )
        ranks = {
            place[found["A"]].get_slice(found["A"]).get_shape()[0],
            place[found["B"]].get_slice(found["B"]).get_shape()[1],
        }
        if ranks != {rank}:
            raise UserError(f"the adapter of {module} has rank {max(ranks)}, but the checkpoint says {rank}")
        pairs[module] = (found["A"], found["B"])
    return pairs


def _opened(file: Path) -> Any:
    try:
        return safe_open(file, framework="pt")
    except (OSError, SafetensorError) as error:
        raise UserError(f"{file} is not whole ({str(error).splitlines()[0]}); take another step") from error


def tied_names(model: torch.nn.Module) -> set[str]:
    """Names of weights that are another weight of the model, which comes first."""
    seen: set[int] = set()
    tied = set()
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in seen:
            tied.add(name)
        seen.add(id(parameter))
    return tied
