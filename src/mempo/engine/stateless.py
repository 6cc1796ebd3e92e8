"""A cache that keeps nothing, for forward passes of whole sequences.

Without a cache, transformers asks of every batch whether several sequences were packed into one row: a read from the
device, for which a GPU stops. With one it does not ask.
"""

from __future__ import annotations

import inspect
from functools import cache as remembered
from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin

from mempo.engine.compat import keeps_everything


class _PassingLayer(CacheLayerMixin):
    """Hands keys and values on as they come. Nothing is kept, so a layer may be computed twice."""

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None: ...

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return -1

    def get_max_cache_shape(self) -> int:  # the name in earlier releases
        return -1


def stateless_cache(model: PreTrainedModel) -> dict[str, Cache]:
    """The keyword argument for a forward pass of the backbone; none where its layers need a cache of their own kind."""
    if model not in _fits:
        _fits[model] = keeps_everything(model)
    if not _fits[model]:
        return {}
    layers: list[Any] = [_PassingLayer() for _ in range(model.config.get_text_config().num_hidden_layers)]
    return {_keyword(type(model.base_model)): Cache(layers=layers)}


_fits: WeakKeyDictionary[PreTrainedModel, bool] = WeakKeyDictionary()


@remembered
def _keyword(backbone: Any) -> str:
    """It was `past_key_values` and is being renamed `cache`."""
    return "cache" if "cache" in inspect.signature(backbone.forward).parameters else "past_key_values"
