"""Putting ragged rows into rectangles."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def micro_batches(lengths: Sequence[int], budget_tokens: int) -> list[list[int]]:
    """Indices grouped so that each rectangle (rows × longest row) holds at most `budget_tokens`, longest rows first.

    A row longer than the budget goes alone. Ties keep the order given, so equal inputs give equal batches.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    batches: list[list[int]] = []
    for i in order:
        if batches and (len(batches[-1]) + 1) * max(lengths[batches[-1][0]], 1) <= budget_tokens:
            batches[-1].append(i)
        else:
            batches.append([i])
    return batches


def right_padded(ids: Sequence[Sequence[int]], device: torch.device, width: int | None = None) -> torch.Tensor:
    """`[rows, longest]`; the padding is 0 and never looked at: lengths decide, not values."""
    width = width or max(len(row) for row in ids)
    return torch.tensor([[*row, *([0] * (width - len(row)))] for row in ids], dtype=torch.long, device=device)
