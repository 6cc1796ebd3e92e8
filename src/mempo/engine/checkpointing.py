"""Gradient checkpointing: the activations of a layer are made again in the backward pass instead of being kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from mempo.errors import UserError


def checkpointable_layers(model: torch.nn.Module) -> list[GradientCheckpointingLayer]:
    """The layers whose activations can be made again.

    Raises:
        UserError: the model's family does not say which they are.
    """
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise UserError(
            f"{type(model).__name__} has no layers that can be checkpointed; leave model.gradient_checkpointing at "
            "false and lower micro_batch_tokens instead"
        )
    return layers


@contextmanager
def checkpointed(model: torch.nn.Module) -> Iterator[None]:
    """Inside, forward passes keep the inputs of the layers and no more; the backward pass belongs inside too.

    The library's own switch works in training mode only, which would turn dropout on. The layers are wrapped instead,
    for the time of the update; nothing random happens in them, so no random state is kept.
    """
    layers: list[Any] = checkpointable_layers(model)
    for layer in layers:
        again = partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)
        layer.forward = again
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward  # the method of its class shows again
