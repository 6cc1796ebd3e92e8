"""Log-probs of given continuations: the naive reference, and the batched scorer that training uses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from mempo.engine.model import Policy, logits_at
from mempo.engine.padding import micro_batches, right_padded
from mempo.interfaces import ScoreRequest


def wanted(request: ScoreRequest) -> Sequence[int]:
    """The continuation positions a request asks for."""
    return range(len(request.continuation_ids)) if request.which is None else request.which


@torch.no_grad()
def score_naive(policy: Policy, requests: Sequence[ScoreRequest], temperature: float = 1.0) -> list[np.ndarray]:
    """One unpadded forward per request, all logits: slow, and plainly right. The reference of the tests."""
    results = []
    for request in requests:
        ids = torch.tensor([request.prefix_ids + request.continuation_ids], device=policy.device)
        logits = policy.model(input_ids=ids, use_cache=False).logits[0].double() / temperature
        logprobs = torch.log_softmax(logits, dim=-1)
        base = len(request.prefix_ids)
        picked = [logprobs[base + k - 1, request.continuation_ids[k]].item() for k in wanted(request)]
        results.append(np.array(picked, dtype=np.float64))
    return results


class LocalScorer:
    """A `Scorer` over the policy in this process: rows sorted by length, micro-batches by token budget, logits made at
    the wanted positions only. Equal requests are computed once."""

    def __init__(self, policy: Policy, budget_tokens: int = 16_384) -> None:
        self._policy = policy
        self._budget_tokens = budget_tokens

    @torch.no_grad()
    def score(self, requests: Sequence[ScoreRequest], temperature: float = 1.0) -> list[np.ndarray]:
        unique = list(dict.fromkeys(requests))
        lengths = [len(r.prefix_ids) + len(r.continuation_ids) for r in unique]
        results: dict[ScoreRequest, np.ndarray] = {}
        for batch in micro_batches(lengths, self._budget_tokens):
            self._score_batch([unique[i] for i in batch], temperature, results)
        return [results[request] for request in requests]

    def _score_batch(
        self, batch: list[ScoreRequest], temperature: float, results: dict[ScoreRequest, np.ndarray]
    ) -> None:
        device = self._policy.device
        ids = right_padded([r.prefix_ids + r.continuation_ids for r in batch], device)
        picks = [(row, len(r.prefix_ids) + k - 1) for row, r in enumerate(batch) for k in wanted(r)]
        targets = [r.continuation_ids[k] for r in batch for k in wanted(r)]
        values = np.zeros(0)
        if picks:
            rows, positions = torch.tensor(picks, device=device).unbind(1)
            logprobs = torch.log_softmax(logits_at(self._policy, ids, rows, positions) / temperature, dim=-1)
            target_ids = torch.tensor(targets, device=device)
            values = logprobs.gather(1, target_ids[:, None])[:, 0].double().cpu().numpy()
        position = 0
        for request in batch:
            count = len(wanted(request))
            results[request] = values[position : position + count]
            position += count
