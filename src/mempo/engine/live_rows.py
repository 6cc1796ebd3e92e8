"""The model's side of generation: rows that are fed a token at a time. Two ways, one interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from mempo.engine.compat import Slots, forward_cached, keep_rows, new_cache
from mempo.engine.model import Policy
from mempo.engine.radix import as_ids
from mempo.engine.shared_prefix import SharedForward, last_target

Prompt = Sequence[int]


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
        return self._slots.step(policy.model, tokens, active, longest, policy.compiled)

    def keep(self, rows: Sequence[int]) -> None:
        self._slots.keep(rows)

    def ended(self, row: int, ids: Sequence[int], prompt_tokens: int) -> None:
        kept = self._slots.taken(row, prompt_tokens, len(ids))
        self._forward.kept.insert(as_ids(ids), kept, prompt_tokens)


class PaddedRows:
    """Rows padded on the left to one width, over the model's own cache: right for models with sliding windows too."""

    takes_more = False

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def begin(self, rows: Sequence[int], prompts: Sequence[Prompt]) -> torch.Tensor:
        device, width = self._policy.device, max(map(len, prompts))
        pads = torch.tensor([width - len(prompt) for prompt in prompts], device=device)[:, None]
        ids = torch.tensor([[0] * (width - len(p)) + list(p) for p in prompts], dtype=torch.long, device=device)
        columns = torch.arange(width, device=device)[None]
        self._mask = (columns >= pads).long()
        positions = (columns - pads).clamp(min=0)
        self._last = positions[:, -1:]
        self._cache = new_cache(self._policy.model)
        return forward_cached(self._policy.model, self._cache, ids, self._mask, positions)

    def step(self, tokens: torch.Tensor, active: torch.Tensor, longest: int) -> torch.Tensor:
        self._mask = torch.cat([self._mask, self._mask.new_ones(len(tokens), 1)], dim=1)
        self._last = self._last + active[:, None]  # rows that have ended must not leave the window
        return forward_cached(self._policy.model, self._cache, tokens[:, None], self._mask, self._last)

    def keep(self, rows: Sequence[int]) -> None:
        order = torch.tensor(rows, device=self._policy.device)
        keep_rows(self._cache, order)
        self._mask, self._last = self._mask[order], self._last[order]

    def ended(self, row: int, ids: Sequence[int], prompt_tokens: int) -> None: ...
