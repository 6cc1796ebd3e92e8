"""One step of decoding as a compiled function (`torch.compile`), for those who generate long enough to pay for it.

What is compiled takes tensors alone: the tokens, where they go, and the keys and values of every layer as views of the
buffers. Numbers of rows and columns are free, so it is compiled once for a model, and once more when rows leave.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin

Step = Callable[..., torch.Tensor]
_steps: WeakKeyDictionary[PreTrainedModel, Step] = WeakKeyDictionary()


class _Column(CacheLayerMixin):
    """Views of a layer's keys and values `[rows, heads, columns, width]`; every row writes at its own column."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, at: torch.Tensor) -> None:
        self.keys, self.values, self._at = keys, values, at
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None: ...

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert self.keys is not None
        assert self.values is not None
        rows = torch.arange(key_states.shape[0], device=key_states.device)
        self.keys[rows, :, self._at] = key_states[:, :, 0]
        self.values[rows, :, self._at] = value_states[:, :, 0]
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        assert self.keys is not None
        return self.keys.shape[2], 0

    def get_seq_length(self) -> int:
        assert self.keys is not None
        return self.keys.shape[2] - 1

    def get_max_length(self) -> int:
        return -1

    def get_max_cache_shape(self) -> int:  # the name in earlier releases
        return -1


def plain_step(
    model: PreTrainedModel,
    keywords: dict[str, Any],
    cache_word: str,
    tokens: torch.Tensor,
    mask: torch.Tensor,
    at: torch.Tensor,
    layers: Sequence[tuple[torch.Tensor, torch.Tensor]],
) -> torch.Tensor:
    """Feed `tokens` `[rows]` at the columns `at` `[rows]` of `layers`; logits `[rows, vocabulary]`.

    `mask` `[rows, 1, 1, columns]`: what a row may see. `keywords` go to the model as they are.
    """
    made: list[Any] = [_Column(keys, values, at) for keys, values in layers]
    given = {**keywords, cache_word: Cache(layers=made)}
    if "position_ids" in given:
        given["position_ids"] = at[:, None]
    return model(input_ids=tokens[:, None], attention_mask=mask, use_cache=True, **given).logits[:, -1]


def compiled_step(model: PreTrainedModel) -> Step:
    """`plain_step`, compiled with the first call for a model. Where that fails, the plain one, and a warning once."""
    if model not in _steps:
        mode = "reduce-overhead" if model.device.type == "cuda" else None
        _steps[model] = _or_plain(torch.compile(plain_step, dynamic=True, fullgraph=True, mode=mode))
    return _steps[model]


def _or_plain(compiled: Step) -> Step:
    """The compiled step after its first success. Both write the same numbers to the same places, so a step that failed
    half-way can be made again."""
    works = False

    def step(model: PreTrainedModel, *arguments: Any) -> torch.Tensor:
        nonlocal works
        if works:
            return compiled(model, *arguments)
        try:
            logits = compiled(model, *arguments)
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            warnings.warn(
                f"{type(model).__name__} cannot be compiled here ({type(error).__name__}: {reason}); decoding goes on "
                "as with model.compile=false",
                stacklevel=2,
            )
            _steps[model] = plain_step
            return plain_step(model, *arguments)
        works = True
        return logits

    return step
