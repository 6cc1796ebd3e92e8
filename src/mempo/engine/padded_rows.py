"""Rows fed a token at a time over the model's own cache: right for sliding windows and recurrent states too."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from mempo.engine.kv_cache import forward_cached, has_attention, keep_rows, new_cache

Prompt = Sequence[int]


class PaddedRows:
    """Rows padded on the left to one width. `drops_rows`: whether rows can be taken out of the cache; where not, rows
    that leave are fed along until the last one ends. See `LiveRows` for the methods."""

    takes_more = False

    def __init__(self, model: PreTrainedModel, drops_rows: bool = True) -> None:
        self._model, self._drops_rows = model, drops_rows

    def begin(self, rows: Sequence[int], prompts: Sequence[Prompt]) -> torch.Tensor:
        device, width = self._model.device, max(map(len, prompts))
        pads = torch.tensor([width - len(prompt) for prompt in prompts], device=device)[:, None]
        ids = torch.tensor([[0] * (width - len(p)) + list(p) for p in prompts], dtype=torch.long, device=device)
        columns = torch.arange(width, device=device)[None]
        self._mask = (columns >= pads).long()
        positions = (columns - pads).clamp(min=0)
        self._last = positions[:, -1:]
        self._tokens = ids[:, -1]
        self._rows = torch.arange(len(prompts), device=device)  # where in the cache each row lies
        self._cache = new_cache(self._model)
        return forward_cached(self._model, self._cache, ids, self._mask, positions)

    def step(self, tokens: torch.Tensor, active: torch.Tensor, longest: int) -> torch.Tensor:
        self._mask = torch.cat([self._mask, self._mask.new_ones(len(self._mask), 1)], dim=1)
        self._tokens[self._rows] = tokens
        self._last[self._rows] += active[:, None]  # rows that have ended must not leave the window
        # Where nothing is attended to, padding is a matter of the prompt alone: the state has left it behind.
        mask = self._mask if has_attention(self._cache) else None
        return forward_cached(self._model, self._cache, self._tokens[:, None], mask, self._last)[self._rows]

    def keep(self, rows: Sequence[int]) -> None:
        self._rows = self._rows[torch.tensor(rows, device=self._rows.device)]
        if self._drops_rows:
            keep_rows(self._cache, self._rows)
            self._mask, self._last, self._tokens = (x[self._rows] for x in (self._mask, self._last, self._tokens))
            self._rows = torch.arange(len(rows), device=self._rows.device)

    def ended(self, row: int, ids: Sequence[int], prompt_tokens: int) -> None: ...
