"""The policy's weights on their way into vLLM, and digests that say whether they arrived.

vLLM renames, joins (query, key and value; gate and up), pads and packs weights. A digest therefore is a sum over the
elements, so that their order does not matter and zeros do not count, and is taken of a layer as a whole: what both
sides have in common is the number of the layer. It tells stale, missing and rounded weights, not two that were
exchanged within a layer; those show in the log-probs (`VllmSampler.logp_gap`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mempo.engine.lora import merged_weights
from mempo.engine.policy import Policy
from mempo.errors import UserError

CHUNK = 1 << 22
"""Elements that are hashed at once."""
UNIT_ROWS = 256
"""Unit vectors that are sent through a packed layer at once."""
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Digests = dict[str, int]
"""By the number of the layer; `""` is what belongs to none (embeddings, last norm, head)."""


def checkpoint_tensors(policy: Policy) -> dict[str, torch.Tensor]:
    """The weights under the names that a checkpoint of the model has; an adapter is added to them.

    The tensors are those of the policy, not copies, but for those that an adapter changes. A tied head is listed beside
    the embedding: vLLM's builds for CPUs keep a packed copy of it.
    """
    model: Any = policy.model if policy.adapter is None else policy.adapter.base.model
    state = model.state_dict() if policy.adapter is None else merged_weights(policy)
    return _as_saved(model, {name: tensor.detach() for name, tensor in state.items()})


def _as_saved(model: Any, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Some families hold their experts as one tensor and save them apart."""
    from transformers.core_model_loading import revert_weight_conversion

    return revert_weight_conversion(model, tensors)


def tied_names(tensors: Mapping[str, torch.Tensor]) -> list[str]:
    """Names of tensors that another name has brought before."""
    seen: set[tuple[int, torch.Size]] = set()
    found = []
    for name, tensor in tensors.items():
        place = (tensor.data_ptr(), tensor.shape)
        if place in seen:
            found.append(name)
        seen.add(place)
    return found


def worker_lacks(worker: Any, names: Sequence[str]) -> list[str]:
    """Of the names of parameters, those for which the model of a worker has no module: some families use the embedding
    as their head and refuse weights for another one. It runs in vLLM (`collective_rpc`)."""
    modules = worker.model_runner.get_model().named_modules(remove_duplicate=False)
    known = {path.rpartition(".")[2] for path, _ in modules}
    return [name for name in names if name.split(".")[-2] not in known]


@torch.no_grad()
def policy_digests(tensors: Mapping[str, torch.Tensor], dtype: torch.dtype) -> Digests:
    """Sums of hashed elements by layer, of the tensors as rounded to `dtype`; what is tied counts once."""
    found: Digests = {}
    tied = set(tied_names(tensors))
    for name, tensor in tensors.items():
        if name not in tied:
            _add(found, name, digest(tensor, dtype))
    return found


def _add(found: Digests, name: str, amount: int) -> None:
    layer = layer_of(name)
    found[layer] = (found.get(layer, 0) + amount) % (1 << 64)


def layer_of(name: str) -> str:
    """The number of the layer in a parameter's name: `model.layers.3.mlp.up_proj.weight` is of layer 3."""
    number = re.search(r"\.(\d+)\.", name)
    return number[1] if number else ""


@torch.no_grad()
def worker_digests(worker: Any, dtype: torch.dtype) -> Digests:
    """The same of the weights that a worker of vLLM computes with; it runs there (`collective_rpc`).

    Its builds for CPUs pack a weight and drop it, or (embeddings, heads) keep it beside the packed copy, which then
    counts for what it has more or less.
    """
    found: Digests = {}
    seen: set[int] = set()
    for path, module in worker.model_runner.get_model().named_modules():
        packed = hasattr(module, "cpu_linear")
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                _add(found, f"{path}.{name}", digest(parameter, dtype))
        if packed:
            more = digest(_unpacked(module), dtype) - digest(module.weight, dtype)
            _add(found, f"{path}.weight", more)
    return found


def _unpacked(layer: Any) -> torch.Tensor:
    """The weight `[in, out]` as a layer uses it: what it makes of unit vectors.

    Products with 1 and sums with 0 are exact, so these are its numbers bit for bit.
    """
    held = layer.weight
    size = held.shape[1] if held.numel() else getattr(layer, "input_size_per_partition", None) or layer.input_size
    parts = []
    for first in range(0, size, UNIT_ROWS):
        rows = torch.arange(min(UNIT_ROWS, size - first))
        units = torch.zeros(len(rows), size, dtype=held.dtype, device=held.device)
        units[rows, first + rows] = 1
        parts.append(layer.cpu_linear(units, held, None))
    return torch.cat(parts)


def digest(tensor: torch.Tensor, dtype: torch.dtype) -> int:
    """Sum of the hashed bits of the elements, rounded to `dtype`; 0 for zeros."""
    total = 0
    for part in tensor.detach().reshape(-1).split(CHUNK):
        rounded = part.to(dtype) + 0  # -0 becomes 0
        bits = rounded.view(_INTEGERS[rounded.element_size()]).long()
        mixed = bits * 0x1E3779B97F4A7C15
        mixed = (mixed ^ (mixed >> 29)) * 0x3F58476D1CE4E5B9
        total += int((mixed ^ (mixed >> 32)).sum())
    return total


def refuse_other_weights(ours: Mapping[str, int], theirs: Mapping[str, int]) -> None:
    """Compare digests of the trainer's weights and the sampler's.

    Raises:
        UserError: they differ, and where.
    """
    differing = [layer for layer in (*ours, *(set(theirs) - set(ours))) if ours.get(layer) != theirs.get(layer)]
    if differing:
        names = [f"layer {layer}" if layer else "embeddings, last norm or head" for layer in differing]
        shown = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
        raise UserError(
            f"vLLM holds other weights than the policy in {len(differing)} of {len(set(ours) | set(theirs))} parts "
            f"({shown}): rollouts would come from another policy than the one that is trained; use sampler.engine="
            "local, or, where vLLM is known to reshape the weights of this model, sampler.check_weights=false"
        )
