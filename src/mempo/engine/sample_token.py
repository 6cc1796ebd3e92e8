"""From log-probs to tokens: noise of the request's own, top-k and top-p.

Token k of a generation uses the k-th number of its request's counter-based stream, so a sample does not depend on its
neighbours, nor on when it was made (beyond the last bits of floating-point sums).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from mempo.rollout.interfaces import SamplingParams

_BLOCK = 256


def uniforms(sampling: Sequence[SamplingParams], steps: int) -> np.ndarray:
    """`[rows, steps]` numbers in [0, 1): one counter-based stream per row."""
    return np.stack([np.random.Generator(np.random.Philox(s.seed)).random(steps) for s in sampling])


def sample(logprobs: torch.Tensor, uniform: torch.Tensor, sampling: Sequence[SamplingParams]) -> torch.Tensor:
    """The token at which the cumulative probability, summed in float64, passes `uniform` `[rows]`."""
    probs = logprobs.exp()
    if any(s.top_k > 0 or s.top_p < 1 for s in sampling):
        probs = _filtered(probs.double(), sampling)
    # A running sum over the whole vocabulary is slow: first the block in which the threshold is passed, then the place.
    if odd := -probs.shape[-1] % _BLOCK:
        probs = torch.nn.functional.pad(probs, (0, odd))
    blocks = probs.unflatten(-1, (-1, _BLOCK))
    ends = blocks.sum(-1, dtype=torch.float64).cumsum(-1)
    threshold = uniform[:, None] * ends[:, -1:]
    block = torch.searchsorted(ends, threshold, right=True).clamp_(max=ends.shape[-1] - 1)
    before = torch.where(block > 0, ends.gather(1, (block - 1).clamp_(min=0)), 0)
    inside = blocks[torch.arange(len(blocks), device=blocks.device), block[:, 0]]
    # The first position whose running sum exceeds the threshold always has probability above 0. Where rounding lets
    # none of the block do so, it is the last one that has any.
    at = torch.searchsorted(inside.cumsum(-1, dtype=torch.float64), threshold - before, right=True)
    last = (inside > 0).long().cumsum(-1).argmax(-1, keepdim=True)
    return (block * _BLOCK + torch.minimum(at, last))[:, 0]


def _filtered(probs: torch.Tensor, sampling: Sequence[SamplingParams]) -> torch.Tensor:
    """Zero what top-k and top-p exclude; the most likely token always stays."""
    ordered, order = probs.sort(dim=-1, descending=True, stable=True)
    ranks = torch.arange(probs.shape[-1], device=probs.device)[None]
    top_k = torch.tensor([s.top_k or probs.shape[-1] for s in sampling], device=probs.device)[:, None]
    top_p = torch.tensor([s.top_p for s in sampling], device=probs.device)[:, None]
    before = ordered.cumsum(-1) - ordered
    keep = (ranks < top_k) & ((before < top_p) | (ranks == 0))
    return torch.zeros_like(probs).scatter(1, order, ordered * keep)
