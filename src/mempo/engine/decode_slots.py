"""The model's side of generation: rows that are fed a token at a time. Two ways, one interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from mempo.engine.cache_check import cache_use
from mempo.engine.kv_cache import Slots
from mempo.engine.padded_rows import PaddedRows, Prompt
from mempo.engine.prefix_cache import as_ids
from mempo.engine.prefix_forward import SharedForward, last_target


class LiveRows(Protocol):
    """`takes_more`: whether rows that have ended can be given to other prompts while the rest goes on."""

    takes_more: bool

    def begin(self, rows: Sequence[int], prompts: Sequence[Prompt]) -> torch.Tensor:
        """Put prompts into rows; logits `[prompts, vocabulary]` of what follows them."""
        ...

    def step(self, tokens: torch.Tensor, active: torch.Tensor, longest: int) -> torch.Tensor:
        """Feed a token `[rows]` to every row; logits `[rows, vocabulary]`.

        Rows that are not `active` `[rows]` have ended: they are fed along, and stay where they are. `longest`: tokens
        of the longest row so far.
        """
        ...

    def keep(self, rows: Sequence[int]) -> None:
        """Leave only these rows, in this order."""
        ...

    def ended(self, row: int, ids: Sequence[int], prompt_tokens: int) -> None:
        """A row has ended, having been fed these ids, its prompt first."""
        ...


class SlotRows:
    """Rows in buffers made once. Prompts begin from kept prefixes, and what is generated is kept for the next turn."""

    takes_more = True

    def __init__(self, forward: SharedForward, rows: int, columns: int) -> None:
        assert forward.shape is not None  # `can_keep`
        self._forward = forward
        self._slots = Slots(forward.shape, rows, columns)

    def begin(self, rows: Sequence[int], prompts: Sequence[Prompt]) -> torch.Tensor:
        forward, parts = self._forward, [torch.zeros(0)] * len(prompts)
        for slots, states in forward.run([(ids, last_target(ids, n)) for n, ids in enumerate(prompts)], keep=True):
            for slot, logits in zip(slots, forward.logits(states), strict=True):
                parts[slot] = logits
        for row, prompt in zip(rows, prompts, strict=True):
            forward.kept.fill(self._slots.begin(row, len(prompt)), as_ids(prompt), len(prompt))
        forward.kept.trim()
        return torch.stack(parts)

    def step(self, tokens: torch.Tensor, active: torch.Tensor, longest: int) -> torch.Tensor:
        self._forward.work.forwards += 1
        self._forward.work.tokens += len(tokens)
        policy = self._forward.policy
        return self._slots.step(policy.model, tokens, active, longest)

    def keep(self, rows: Sequence[int]) -> None:
        self._slots.keep(rows)

    def ended(self, row: int, ids: Sequence[int], prompt_tokens: int) -> None:
        kept = self._slots.taken(row, prompt_tokens, len(ids))
        self._forward.kept.insert(as_ids(ids), kept, prompt_tokens)


def live_rows(forward: SharedForward, rows: int, columns: int) -> LiveRows:
    """Room for `rows` sequences of up to `columns` tokens, in the way that this model's cache allows."""
    if forward.can_keep:
        return SlotRows(forward, rows, columns)
    policy = forward.policy
    return PaddedRows(policy.model, cache_use(policy.model, policy.plain_head).drops_rows)
