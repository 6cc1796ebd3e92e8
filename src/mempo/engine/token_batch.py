"""Training rows as tensors: the rectangle that goes through the model, and the generated tokens in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mempo.engine.model import logprobs_at
from mempo.engine.padding import right_padded
from mempo.engine.policy import Policy
from mempo.rollout.trajectory import Row


def fed_tokens(row: Row) -> int:
    """How many tokens of a row go through the model: those before its last generated one, which is only predicted."""
    return max((seg.stop - 1 for seg in row.segments if seg.stop > seg.start), default=0)


def prompt_tokens(row: Row) -> int:
    """How many tokens a row begins with that nothing is predicted from: up to two before the first generated one."""
    return min((seg.start - 1 for seg in row.segments if seg.stop > seg.start), default=0)


def on_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copied without waiting: to a GPU from pinned memory."""
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


@dataclass
class TokenBatch:
    """The generated tokens of some rows, flattened to `[picked]`, and where they are predicted."""

    input_ids: torch.Tensor
    """`[rows, longest]`, right-padded; what follows the prefix."""
    rows: torch.Tensor
    positions: torch.Tensor
    targets: torch.Tensor
    temperature: torch.Tensor
    prefix_ids: torch.Tensor | None = None
    """`[1, prefix]`, what all rows begin with, where that is computed once."""

    @classmethod
    def of(cls, rows: Sequence[Row], device: torch.device, prefix: int = 0) -> TokenBatch:
        """The token at position p is predicted from position p - 1; segments never start at 0. The first `prefix`
        tokens of all rows are the same, and nothing is predicted from them."""
        picks = [
            (k, p - 1 - prefix, row.ids[p], row.temperature)
            for k, row in enumerate(rows)
            for seg in row.segments
            for p in range(seg.start, seg.stop)
        ]
        where, positions, targets, temperature = zip(*picks, strict=True)
        ids = right_padded([row.ids[prefix : fed_tokens(row)] for row in rows], torch.device("cpu"))
        return cls(
            on_device(ids, device),
            on_device(torch.tensor(where), device),
            on_device(torch.tensor(positions), device),
            on_device(torch.tensor(targets), device),
            on_device(torch.tensor(temperature), device),
            on_device(torch.tensor([rows[0].ids[:prefix]]), device) if prefix else None,
        )

    def logprobs(self, policy: Policy, with_entropy: bool = False) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Log-probs of the targets `[picked]` at the sampling temperature, and the entropies there when asked for."""
        where = (self.rows, self.positions, self.targets, self.temperature)
        return logprobs_at(policy, self.input_ids, *where, with_entropy, self.prefix_ids)
