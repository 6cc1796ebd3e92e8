"""Forwarding sequences that share prefixes: by plan (`prefix_plan.py`), from cached keys and values
(`prefix_cache.py`), in batches.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch

from mempo.engine.cache_check import cache_use
from mempo.engine.kv_cache import Behind, CacheShape, behind_mask, new_cache, states_cached
from mempo.engine.logprobs import logprobs_of_logits
from mempo.engine.model import backbone_hidden, head_logprobs
from mempo.engine.padding import right_padded
from mempo.engine.policy import Policy
from mempo.engine.prefix_cache import Ids, RadixCache, as_ids
from mempo.engine.prefix_plan import PlannedRow, Target, batches, masked_cost, plan_rows

KEPT_BYTES = 1 << 30
SCRATCH_BYTES = 1 << 28
"""A buffer for prefixes that stays from call to call on a CPU, where new memory is handed out page by page."""


@dataclass
class Work:
    """What has been forwarded so far. `padded_tokens`: the same, padding included; `head_rows`: rows of logits made."""

    forwards: int = 0
    tokens: int = 0
    padded_tokens: int = 0
    head_rows: int = 0


BUDGET_TOKENS = {"cpu": 2048}
LARGE_BUDGET_TOKENS = 16_384
"""Tokens of one pass, by device. A larger pass on a CPU only outgrows its caches (`bench/scaling.py`)."""


class SharedForward:
    """The forward passes of one policy without gradient, each shared prefix once. `budget_tokens`: of one pass; None:
    what suits the device.

    Keys and values stay from call to call until the weights change, within `kept_bytes`: a scorer and a sampler that
    hold the same `SharedForward` use what the other has left.
    """

    def __init__(self, policy: Policy, budget_tokens: int | None = None, kept_bytes: int = KEPT_BYTES) -> None:
        self.policy = policy
        self.budget_tokens = budget_tokens or BUDGET_TOKENS.get(policy.device.type, LARGE_BUDGET_TOKENS)
        self.kept = RadixCache(kept_bytes)
        self.work = Work()
        self._said = False
        self._scratch: torch.Tensor | None = None

    @property
    def shape(self) -> CacheShape | None:
        """What is kept of a token; None where this model's prefixes cannot be shared."""
        return cache_use(self.policy.model, self.policy.plain_head).prefix

    @property
    def can_keep(self) -> bool:
        """Whether this model answers the same from kept keys and values; where not, says so once."""
        shape = self.shape
        if shape is None and not self._said:
            self._said = True
            warnings.warn(
                f"{type(self.policy.model).__name__} has sliding windows or a cache that cannot be cut: shared "
                "prefixes are forwarded anew each time, which is slower and equally exact",
                stacklevel=2,
            )
        return shape is not None

    def renew(self) -> None:
        """Forget what earlier weights computed."""
        self.kept.renew((self.policy.version, self.shape))

    @torch.no_grad()
    def run(
        self, sequences: Sequence[tuple[Sequence[int], Sequence[Target]]], keep: bool = False
    ) -> Iterator[tuple[list[int], torch.Tensor]]:
        """Hidden states of the targets, batch by batch: `(slots, [slots, width])`; logits where the head is no matrix.

        `keep`: also leave the keys and values of all sequences for later calls; the caller then calls `kept.trim`.
        """
        self.renew()
        asked = [(as_ids(ids), list(targets)) for ids, targets in sequences]
        asked = [(ids[: max(t.position for t in targets) + 1], targets) for ids, targets in asked if targets]
        can_keep = self.can_keep
        cost = masked_cost(self.policy.model.config.get_text_config().hidden_size)
        if can_keep:
            rows = plan_rows(asked, self.kept.match, cost)
        else:
            rows = plan_rows(asked, lambda ids: 0, lambda past, new: float("inf") if past else new)
        if keep and can_keep:
            for row in rows:
                row.keep = len(row.ids)
        for _, wave in groupby(rows, key=lambda row: row.wave):
            for batch in batches(list(wave), self.budget_tokens):
                yield self._forward(batch, keep)
        self.kept.drop_temporary()
        scratch = self._scratch
        if scratch is not None and (
            scratch.device.type != "cpu"  # other devices hand out the same memory again by themselves
            or scratch.nbytes > SCRATCH_BYTES
            or scratch.is_inference()  # cannot be written to by a later caller outside inference mode
        ):
            self._scratch = None

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """Logits `[picked, vocabulary]` in float32 of what `run` gave."""
        self.work.head_rows += len(states)
        head: Any = self.policy.model.get_output_embeddings()
        return (head(states) if self.policy.plain_head else states).float()

    def logprobs(self, states: torch.Tensor, targets: torch.Tensor, temperature: float) -> torch.Tensor:
        """Log-probs `[picked]` of `targets` `[picked]` in float32, from what `run` gave; logits held by chunks."""
        self.work.head_rows += len(states)
        scale = torch.full((len(states),), temperature, device=states.device)
        if self.policy.plain_head:
            return head_logprobs(self.policy, states, targets, scale)[0]
        return logprobs_of_logits(states, targets, scale, with_entropy=False)[0]

    def _forward(self, batch: Sequence[PlannedRow], keep: bool = False) -> tuple[list[int], torch.Tensor]:
        policy, device = self.policy, self.policy.device
        new_ids = [row.ids[row.past :].tolist() for row in batch]
        ids = right_padded(new_ids, device)
        self.work.forwards += 1
        self.work.tokens += sum(map(len, new_ids))
        self.work.padded_tokens += ids.numel()
        kept = None
        if not any(row.past or row.keep for row in batch) and policy.plain_head:
            states = backbone_hidden(policy.model, ids)
        elif not self.can_keep:
            states = states_cached(policy.model, policy.plain_head, new_cache(policy.model), ids, None, None)
        else:
            kept, mask, positions = self._behind(batch, ids.shape[1])
            states = states_cached(policy.model, policy.plain_head, kept.cache, ids, mask, positions)
        if kept is not None:
            self._leave(batch, kept, keep)
        where = [(n, t.position - row.past) for n, row in enumerate(batch) for t in row.targets]
        rows, positions = torch.tensor(where, device=device).unbind(1)
        return [t.slot for row in batch for t in row.targets], states[rows, positions]

    def _leave(self, batch: Sequence[PlannedRow], made: Behind, keep: bool) -> None:
        """Store the keys and values that later rows, or later calls, need."""
        for number, row in enumerate(batch):
            if row.keep > row.past:
                kv = made.taken(number, row.keep - row.past)
                self.kept.insert(row.ids[: row.keep], kv, row.past, temporary=not keep)

    def _behind(
        self, batch: Sequence[PlannedRow], width: int
    ) -> tuple[Behind, torch.Tensor | None, torch.Tensor | None]:
        """The rows' kept prefixes with room for the new tokens, and the mask and positions that go with them."""
        shape = self.shape
        assert shape is not None  # `can_keep`
        pasts = [row.past for row in batch]
        deepest = max(pasts)
        # What is kept of a batch is a view of its buffer, so the next one takes another.
        stays = any(row.keep > row.past for row in batch)
        behind = Behind(shape, len(batch), deepest, width, None if stays else self._scratch)
        if deepest == 0:
            return behind, None, None
        if not stays:
            self._scratch = behind.scratch
        for number, row in enumerate(batch):
            self.kept.fill(behind.prefix(number, row.past), row.ids, row.past)
        return behind, *behind_mask(pasts, width, self.policy.device)


def last_target(ids: Ids | Sequence[int], slot: int) -> list[Target]:
    """The state from which the token behind `ids` is predicted."""
    return [Target(len(ids) - 1, slot)]
