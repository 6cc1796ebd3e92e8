"""What differs between releases of transformers lives here and nowhere else."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel


def new_cache(model: PreTrainedModel) -> DynamicCache:
    return DynamicCache(config=model.config)


def forward_cached(
    model: PreTrainedModel,
    cache: DynamicCache,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    position_ids: torch.Tensor,
) -> torch.Tensor:
    """Feed `input_ids` `[rows, tokens]` behind what the cache holds; logits of the last position `[rows, vocabulary]`.

    The keyword for the cache was `past_key_values` and is being renamed `cache`.
    """
    parameters = inspect.signature(model.forward).parameters
    keywords: dict[str, Any] = {"cache" if "cache" in parameters else "past_key_values": cache}
    if "logits_to_keep" in parameters:
        keywords["logits_to_keep"] = 1
    if "position_ids" in parameters:
        keywords["position_ids"] = position_ids
    output = model(input_ids=input_ids, attention_mask=attention_mask, use_cache=True, **keywords)
    return output.logits[:, -1]


def keep_rows(cache: DynamicCache, rows: torch.Tensor) -> None:
    """Leave only the sequences `rows` (indices) in the cache."""
    cache.batch_select_indices(rows)
