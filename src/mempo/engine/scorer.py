"""Log-probs of given continuations: the naive reference, and the shared-prefix scorer that training uses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from mempo.engine.policy import Policy
from mempo.engine.prefix_forward import SharedForward
from mempo.engine.prefix_plan import Target
from mempo.rollout.interfaces import ScoreRequest


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
    """A `Scorer` over the policy in this process.

    Requests may share prefixes of any kind; they are found by their ids, and each is forwarded once (`SharedForward`).
    Head rows are made for the wanted positions alone, in chunks. Equal within 1e-4 to `score_naive` in float32.
    """

    def __init__(self, policy: Policy, budget_tokens: int | None = None, forward: SharedForward | None = None) -> None:
        self.forward = forward or SharedForward(policy, budget_tokens)

    @torch.no_grad()
    def score(self, requests: Sequence[ScoreRequest], temperature: float = 1.0) -> list[np.ndarray]:
        sequences, next_ids = [], []
        for request in requests:
            base = len(request.prefix_ids)
            targets = [Target(base + k - 1, len(next_ids) + n) for n, k in enumerate(wanted(request))]
            next_ids += [request.continuation_ids[k] for k in wanted(request)]
            sequences.append((request.prefix_ids + request.continuation_ids, targets))
        values = np.zeros(len(next_ids))
        for slots, states in self.forward.run(sequences):
            chosen = torch.tensor([next_ids[slot] for slot in slots], device=states.device)
            values[slots] = self.forward.logprobs(states, chosen, temperature).double().cpu().numpy()
        ends = np.cumsum([len(wanted(request)) for request in requests]) if requests else []
        return [values[end - len(wanted(request)) : end] for request, end in zip(requests, ends, strict=True)]
