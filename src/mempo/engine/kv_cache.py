"""What differs between releases of transformers lives here and nowhere else."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer

from mempo.engine.prefix_cache import Kept, Views, Whole


def new_cache(model: PreTrainedModel) -> DynamicCache:
    return DynamicCache(config=model.config)


def keeps_everything(model: PreTrainedModel) -> bool:
    """Whether every layer keeps all keys and values, so that a cache can be cut anywhere: no sliding windows, no
    recurrent state."""
    if getattr(model, "_is_stateful", False) or not _takes_cache(model.base_model):
        return False
    layers = new_cache(model).layers
    return bool(layers) and all(type(layer) is DynamicLayer for layer in layers)


@cache
def _parameters(forward: Any) -> frozenset[str]:
    return frozenset(inspect.signature(forward).parameters)


_CACHE_WORDS = ("cache", "past_key_values", "cache_params")


def cache_keyword(module: Any) -> str:
    """The name of the argument that takes the cache: by release and by family.

    Raises:
        TypeError: it takes none. Passed under a wrong name, a cache is ignored without a word.
    """
    if not _takes_cache(module):
        raise TypeError(f"{type(module).__name__} takes no cache of transformers")
    return next(word for word in _CACHE_WORDS if word in _parameters(type(module).forward))


def _takes_cache(module: Any) -> bool:
    return not _parameters(type(module).forward).isdisjoint(_CACHE_WORDS)


def _cache_word(module: Any, cache: Cache) -> dict[str, Any]:
    return {cache_keyword(module): cache}


def _keywords(module: Any, cache: Cache, position_ids: torch.Tensor | None, last_only: bool) -> dict[str, Any]:
    parameters = _parameters(type(module).forward)
    keywords = _cache_word(module, cache)
    if last_only and "logits_to_keep" in parameters:
        keywords["logits_to_keep"] = 1
    if position_ids is not None and "position_ids" in parameters:
        keywords["position_ids"] = position_ids
    return keywords


def forward_cached(
    model: PreTrainedModel,
    cache: Cache,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor | None,
    position_ids: torch.Tensor,
) -> torch.Tensor:
    """Feed `input_ids` `[rows, tokens]` behind what the cache holds; logits of the last one `[rows, vocabulary]`."""
    keywords = _keywords(model, cache, position_ids, last_only=True)
    return model(input_ids=input_ids, attention_mask=attention_mask, use_cache=True, **keywords).logits[:, -1]


def states_cached(
    model: PreTrainedModel,
    plain_head: bool,
    cache: Cache,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor | None,
    position_ids: torch.Tensor | None,
) -> torch.Tensor:
    """Feed `input_ids` `[rows, tokens]` behind what the cache holds; last hidden states `[rows, tokens, width]`, or
    logits where the head is more than a matrix."""
    module: Any = model.base_model if plain_head else model
    keywords = _keywords(module, cache, position_ids, last_only=False)
    output = module(input_ids=input_ids, attention_mask=attention_mask, use_cache=True, **keywords)
    return output.last_hidden_state if plain_head else output.logits


def keep_rows(cache: DynamicCache, rows: torch.Tensor) -> None:
    """Leave only the sequences `rows` (indices) in the cache."""
    indices: Any = rows
    cache.reorder_cache(indices)  # unlike `batch_select_indices`, recurrent layers have it too


def has_attention(cache: Cache) -> bool:
    """Whether any layer of the cache holds keys and values, not only a recurrent state."""
    return any(isinstance(layer, CacheLayerMixin) for layer in cache.layers)


class Holder(Protocol):
    """Who keeps the keys and values of a cache. `seen`: tokens that the model may count on before the new ones."""

    seen: int

    def write(self, number: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Take the new keys and values of layer `number` `[rows, heads, tokens, width]`; all that it attends to."""
        ...


class _Layer(CacheLayerMixin):
    """One layer of a holder's keys and values, as transformers wants to see it."""

    def __init__(self, holder: Holder, number: int) -> None:
        super().__init__()
        self._holder, self._number = holder, number
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None: ...

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self._holder.write(self._number, key_states, value_states)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._holder.seen + query_length, 0

    def get_seq_length(self) -> int:
        return self._holder.seen

    def get_max_length(self) -> int:
        return -1

    def get_max_cache_shape(self) -> int:  # the name in earlier releases
        return -1


def cache_of(holder: Holder, layers: int) -> Cache:
    made: list[Any] = [_Layer(holder, number) for number in range(layers)]
    return Cache(layers=made)


@dataclass(frozen=True)
class CacheShape:
    """Of the keys and values of one token: `[layers, 2, heads, width]`."""

    layers: int
    heads: int
    width: int
    dtype: torch.dtype
    device: torch.device


def cache_shape(model: PreTrainedModel) -> CacheShape | None:
    """What the model keeps of a token, found by feeding one; None where its layers differ."""
    cache = new_cache(model)
    with torch.no_grad():
        model(
            input_ids=torch.zeros(1, 1, dtype=torch.long, device=model.device),
            use_cache=True,
            **_cache_word(model, cache),
        )
    layers: Any = cache.layers
    shapes = {tensor.shape for layer in layers for tensor in (layer.keys, layer.values)}
    if len(shapes) != 1:
        return None
    _, heads, _, width = shapes.pop()
    return CacheShape(len(layers), heads, width, layers[0].keys.dtype, layers[0].keys.device)


class Behind:
    """Kept prefixes of several rows and room for `new` tokens behind them, in one buffer.

    `buffer` `[layers, 2, rows, heads, tokens, width]`: prefixes end at column `deepest`, so shorter ones are padded on
    the left; `prefix(row, length)` is where one belongs. With `deepest` 0 there is nothing to put together: what the
    model makes is held as it comes. The buffer lies in `scratch`, a flat tensor of an earlier one that is no longer
    needed, where that is large enough.
    """

    def __init__(
        self, shape: CacheShape, rows: int, deepest: int, new: int, scratch: torch.Tensor | None = None
    ) -> None:
        size = (shape.layers, 2, rows, shape.heads, deepest + new if deepest else 0, shape.width)
        count = math.prod(size)
        if scratch is None or len(scratch) < count or (scratch.dtype, scratch.device) != (shape.dtype, shape.device):
            scratch = torch.empty(count, dtype=shape.dtype, device=shape.device)
        self.scratch = scratch
        self.buffer = scratch[:count].view(size)
        self.seen = deepest
        self.cache = cache_of(self, shape.layers)
        self._made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def prefix(self, row: int, length: int) -> torch.Tensor:
        """A view `[layers, 2, heads, length, width]` to be filled; what lies left of it becomes 0."""
        place = self.buffer[:, :, row, :, : self.seen]
        place[..., : self.seen - length, :] = 0  # masked, and yet a NaN there would spread
        return place[..., self.seen - length :, :]

    def taken(self, row: int, count: int) -> Kept:
        """The first `count` new tokens of a row."""
        if self._made:
            return Views([(keys[row, :, :count], values[row, :, :count]) for keys, values in self._made.values()])
        return Whole(self.buffer[:, :, row, :, self.seen : self.seen + count])

    def write(self, number: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.seen:
            self._made[number] = keys, values
            return keys, values
        layer = self.buffer[number]
        layer[0][:, :, self.seen :] = keys
        layer[1][:, :, self.seen :] = values
        return layer[0], layer[1]


def behind_mask(
    pasts: Sequence[int], width: int, device: torch.device
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Mask `[rows, deepest + width]` and positions `[rows, width]` of new tokens behind prefixes in a `Behind`; None
    where the model's own are right."""
    deepest = max(pasts)
    if deepest == 0:
        return None, None  # padding stands on the right, where no token sees it
    lengths = torch.tensor(pasts, device=device)[:, None]
    positions = lengths + torch.arange(width, device=device)
    if min(pasts) == deepest:
        return None, positions
    columns = torch.arange(deepest + width, device=device)[None]
    return (columns >= deepest - lengths).long(), positions


_AHEAD = 64
"""Columns that are made ready at once."""


class Slots:
    """Keys and values of sequences that are being generated, in buffers made once, a row a sequence.

    A row's keys and values lie in columns `[0, length)`, whatever the other rows hold: a sequence that ends leaves its
    row to another. `step` feeds one token a row and writes behind each row's own end.
    """

    def __init__(self, shape: CacheShape, rows: int, columns: int) -> None:
        size = (shape.layers, 2, rows, shape.heads, columns, shape.width)
        self.buffer = torch.empty(size, dtype=shape.dtype, device=shape.device)
        self._clean = 0  # columns that hold numbers
        self.lengths = torch.zeros(rows, dtype=torch.long, device=shape.device)
        self.seen = 0  # the length of the longest row
        self._columns = torch.arange(columns, device=shape.device)
        self._rows = torch.arange(rows, device=shape.device)
        self.cache = cache_of(self, shape.layers)

    def begin(self, row: int, length: int) -> torch.Tensor:
        """A view `[layers, 2, heads, length, width]` to be filled with the prompt of a new sequence in this row."""
        self._clean_up_to(length)
        self.lengths[row] = length
        self.seen = max(self.seen, length)
        return self.buffer[:, :, row, :, :length]

    def _clean_up_to(self, columns: int) -> None:
        """Columns behind a row's end are masked, and yet a NaN there would spread. Zeros are written as they are
        needed: few sequences grow as long as they may."""
        if columns > self._clean:
            stop = min(columns + _AHEAD, self.buffer.shape[-2])
            self.buffer[..., self._clean : stop, :] = 0
            self._clean = stop

    def keep(self, rows: Sequence[int]) -> None:
        """Leave only these rows: row n becomes what row `rows[n]` was. A row goes only where none that stays is."""
        for row, old in enumerate(rows):
            if row != old:
                self.buffer[:, :, row, :, : self.seen + 1] = self.buffer[:, :, old, :, : self.seen + 1]
        self.lengths = self.lengths[torch.tensor(rows, device=self.lengths.device)]

    def taken(self, row: int, start: int, stop: int) -> Kept:
        """A row's positions `[start, stop)`."""
        return Whole(self.buffer[:, :, row, :, start:stop])

    def step(self, model: PreTrainedModel, tokens: torch.Tensor, active: torch.Tensor, longest: int) -> torch.Tensor:
        """Feed `tokens` `[rows]`; logits `[rows, vocabulary]`. Rows that are not `active` `[rows]` grow no longer.

        `longest`: the length of the longest row, which the caller knows without asking the device.
        """
        used = len(tokens)
        self._clean_up_to(longest + 1)
        self.seen = longest
        lengths = self.lengths[:used]
        mask = self._columns[None, : longest + 1] <= lengths[:, None]
        if model.config._attn_implementation == "sdpa":
            mask = mask[:, None, None]  # ready made, or transformers would make it anew at every step
        else:
            mask = mask.long()
        logits = forward_cached(model, self.cache, tokens[:, None], mask, lengths[:, None])
        self.lengths[:used] += active
        return logits

    def write(self, number: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        used = len(keys)
        layer = self.buffer[number]
        place = self._rows[:used], slice(None), self.lengths[:used]
        layer[0][place] = keys[:, :, 0]
        layer[1][place] = values[:, :, 0]
        return layer[0][:used, :, : self.seen + 1], layer[1][:used, :, : self.seen + 1]
