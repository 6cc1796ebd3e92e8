"""Adding an adapter to the weights, and the proof beforehand that what is trained is what will be added.

A layer whose weight is read instead of called (as in some recurrent layers) ignores its adapter, or half of it, and
nothing says so: training moves numbers that the model never sees, or that the merged weights do not show.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.func import functional_call
from transformers import PreTrainedModel

from mempo.errors import UserError
from mempo.storage.model_files import said

NAME = "default"
"""Of the adapter, inside peft."""


@dataclass(frozen=True)
class AdaptedWeight:
    """A weight with an adapter: its `name` in a model without, and `layer`, peft's module around it."""

    name: str
    layer: Any

    @property
    def kind(self) -> str:
        """The last part of the name of its layer (q_proj), or of the weight where that lies in no layer of its own."""
        return self.name.removesuffix(".weight").split(".")[-1]

    @property
    def targetable(self) -> bool:
        """Whether `targets` can name it; experts that lie in one tensor only come with `all-linear`."""
        return not hasattr(self.layer, "parameter_name")

    def merged(self) -> torch.Tensor:
        """The weight with the adapter added, in the weight's own precision."""
        weight = (self.layer.base_layer.weight if self.targetable else self.layer.get_param()).detach()
        return (weight.float() + self.layer.get_delta_weight(NAME).detach().float()).to(weight.dtype)


def adapted_weights(model: PreTrainedModel) -> Iterator[AdaptedWeight]:
    for name, module in model.named_modules():
        layer: Any = module
        if hasattr(layer, "base_layer") and hasattr(layer, "get_delta_weight"):
            # Several tensors of one module are wrapped one around the other.
            inside = ".".join(part for part in name.split(".") if part != "base_layer")
            yield AdaptedWeight(f"{inside}.{getattr(layer, 'parameter_name', 'weight')}", layer)


@torch.no_grad()
def refuse_unmergeable(model: PreTrainedModel, plain: PreTrainedModel) -> None:
    """Try every kind of layer on a few tokens: the model with an adapter of random numbers on it against the model
    `plain` with the same numbers added to its weights. Leaves a fresh adapter as it was.

    Raises:
        UserError: an adapter that is ignored or cannot be added, with the kinds of layers that work.
    """
    ids = torch.arange(8, device=plain.device)[None] * 7 % plain.config.get_text_config().vocab_size
    before = plain(input_ids=ids, use_cache=False).logits.float()
    half, scale = plain.dtype in (torch.bfloat16, torch.float16), float(before.abs().max())
    of_moved, of_logits = (0.5, 3e-2) if half else (1e-2, 1e-5)  # rounding is another where the product is added
    kinds: dict[str, list[AdaptedWeight]] = defaultdict(list)
    for weight in adapted_weights(model):
        kinds[weight.kind].append(weight)
    wrong: dict[str, str] = {}
    for kind, weights in kinds.items():
        try:
            for weight in weights:
                weight.layer.lora_B[NAME].weight.normal_(0, 0.2)
            ours = model(input_ids=ids, use_cache=False).logits.float()
            added = functional_call(plain, {one.name: one.merged() for one in weights}, (), _keywords(ids))
        except Exception as error:  # a layer that peft wraps and the model does not call as peft expects
            wrong[kind] = f"it fails ({type(error).__name__}: {said(error)})"
        else:
            apart = float((ours - added.logits.float()).abs().max())
            moved = max(float((logits - before).abs().max()) for logits in (ours, added.logits.float()))
            if apart > max(of_moved * moved, of_logits * scale):
                wrong[kind] = "the model does not compute with it what its weights would with it added"
        finally:
            for weight in weights:
                weight.layer.lora_B[NAME].weight.zero_()
    if wrong:
        right = sorted(kind for kind, weights in kinds.items() if kind not in wrong and weights[0].targetable)
        remedy = f"set model.lora.targets=[{', '.join(right)}]" if right else "train all weights (model.lora=null)"
        raise UserError(
            f"{type(model).__name__} cannot have an adapter on {', '.join(sorted(wrong))}: "
            f"{next(iter(wrong.values()))}; {remedy}"
        )


def _keywords(ids: torch.Tensor) -> dict[str, Any]:
    return {"input_ids": ids, "use_cache": False}
