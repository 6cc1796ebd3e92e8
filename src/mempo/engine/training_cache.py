"""Caches for forward passes with gradients: one that keeps nothing, and one that holds a prefix that rows share.

Both give the same whenever a layer is computed, so layers may be computed twice (gradient checkpointing).
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers import PreTrainedModel

from mempo.engine.kv_cache import cache_keyword, cache_of, keeps_everything


class _Handed:
    """Hands the keys and values of new tokens on as they come, `[rows, heads, tokens, width]`, behind those of a prefix
    `[1, heads, prefix, width]` by layer, if there is one; remembers the first that it sees."""

    def __init__(self, prefix: dict[int, tuple[torch.Tensor, torch.Tensor]] | None = None) -> None:
        self._prefix = prefix
        self.seen = prefix[0][0].shape[-2] if prefix else 0
        self.first: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def write(self, number: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self._prefix is None:
            self.first.setdefault(number, (keys, values))
            return keys, values
        before = [held.expand(len(keys), -1, -1, -1) for held in self._prefix[number]]
        return torch.cat([before[0], keys], dim=-2), torch.cat([before[1], values], dim=-2)


def backbone_hidden(model: PreTrainedModel, input_ids: torch.Tensor) -> torch.Tensor:
    """Last hidden states `[rows, tokens, width]` of right-padded rows.

    Attention is causal and padding stands on the right, so no real token sees any: no mask is needed, and without one
    the fast attention kernels apply. Where a cache is passed, it keeps nothing: without one, transformers asks of every
    batch whether several sequences were packed into a row, a read from the device for which a GPU stops.
    """
    return _forward(model, input_ids, _Handed() if fits_a_cache(model) else None)


def hidden_behind(model: PreTrainedModel, prefix_ids: torch.Tensor, input_ids: torch.Tensor) -> torch.Tensor:
    """Last hidden states `[rows, tokens, width]` of right-padded rows that all follow `prefix_ids` `[1, prefix]`.

    The prefix is computed once; its gradient is the sum of what all rows give it.
    """
    prefix = _Handed()
    _forward(model, prefix_ids, prefix)
    return _forward(model, input_ids, _Handed(prefix.first))


def fits_a_cache(model: PreTrainedModel) -> bool:
    """Whether all layers attend to everything before them: no sliding windows, no recurrent state."""
    if model not in _fits:
        _fits[model] = keeps_everything(model)
    return _fits[model]


@torch.no_grad()
def shares_exactly(model: PreTrainedModel) -> bool:
    """Whether rows behind a shared prefix come out as rows do that bring it along; tried on a few tokens."""
    if not fits_a_cache(model):
        return False
    size = model.config.get_text_config().vocab_size
    ids = (torch.arange(14, device=model.device) * 7 % size).reshape(2, 7)
    ids[:, :4] = ids[0, :4]
    try:
        shared = hidden_behind(model, ids[:1, :4], ids[:, 4:]).float()
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError):
        return False
    whole = backbone_hidden(model, ids)[:, 4:].float()
    tolerance = 1e-4 if model.dtype == torch.float32 else 3e-2
    return bool((shared - whole).abs().max() <= tolerance * whole.abs().max())  # false of numbers that are none


_fits: WeakKeyDictionary[PreTrainedModel, bool] = WeakKeyDictionary()


def _forward(model: PreTrainedModel, input_ids: torch.Tensor, handed: _Handed | None) -> torch.Tensor:
    backbone: Any = model.base_model
    layers = model.config.get_text_config().num_hidden_layers
    keywords = {} if handed is None else {cache_keyword(backbone): cache_of(handed, layers)}
    return backbone(input_ids=input_ids, use_cache=False, **keywords).last_hidden_state
