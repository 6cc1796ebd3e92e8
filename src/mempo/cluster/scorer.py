# pyright: reportMissingImports=false
"""verl's actor as the scorer of the memory signal: log-probs of probes under the policy that is being trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.workers.utils.padding import response_from_nested

from mempo.rollout.interfaces import ScoreRequest

LogProbs = Callable[[TensorDict], TensorDict]


class ActorScorer:
    """`log_probs` is verl's `compute_log_prob` of a worker group. `ranks`: its data-parallel size; every rank gets
    equally many rows.

    No keys and values are shared between rows here, since verl's engine keeps none. What requests have in common costs
    nothing twice only where they are the same altogether.
    """

    def __init__(self, log_probs: LogProbs, ranks: int, without_adapter: bool = False) -> None:
        self._log_probs, self._ranks, self._without_adapter = log_probs, ranks, without_adapter

    def score(self, requests: Sequence[ScoreRequest], temperature: float = 1.0) -> list[np.ndarray]:
        if not requests:
            return []
        whole = [(request.prefix_ids, request.continuation_ids) for request in requests]
        unique = list(dict.fromkeys(whole))
        rows = spread_over_ranks([len(a) + len(b) for a, b in unique], self._ranks)
        data = score_rows([unique[i] for i in rows], temperature, self._without_adapter)
        found = response_from_nested(self._log_probs(data)["log_probs"], data["response_mask"])
        values = {unique[i]: row.double().numpy() for i, row in zip(rows, found.unbind(), strict=True)}
        return [
            values[key] if request.which is None else values[key][list(request.which)]
            for key, request in zip(whole, requests, strict=True)
        ]


def spread_over_ranks(lengths: Sequence[int], ranks: int) -> list[int]:
    """Indices of rows so that every rank's contiguous piece holds a like mixture of lengths, shortest first. The
    shortest row is repeated where rows do not divide by `ranks`: its answer is the same each time."""
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    missing = -len(order) % ranks
    order = [order[0]] * missing + order
    return [i for rank in range(ranks) for i in order[rank::ranks]]


def score_rows(
    rows: Sequence[tuple[tuple[int, ...], tuple[int, ...]]], temperature: float, without_adapter: bool
) -> TensorDict:
    """Prefixes as verl's prompts, continuations as its responses; jagged, without padding."""
    whole = [torch.tensor(prefix + continuation, dtype=torch.int64) for prefix, continuation in rows]
    ones = [torch.ones(len(continuation), dtype=torch.int64) for _, continuation in rows]
    tensors = {
        "input_ids": _jagged(whole),
        "position_ids": _jagged([torch.arange(len(ids)) for ids in whole]),
        "prompts": _jagged([torch.tensor(prefix, dtype=torch.int64) for prefix, _ in rows]),
        "responses": _jagged([torch.tensor(continuation, dtype=torch.int64) for _, continuation in rows]),
        "response_mask": _jagged(ones),
        "loss_mask": _jagged(ones),
    }
    settings = {"temperature": temperature, "calculate_entropy": False, "compute_loss": False}
    if without_adapter:
        settings["no_lora_adapter"] = True
    return tu.get_tensordict(tensors, settings)


def _jagged(rows: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)
