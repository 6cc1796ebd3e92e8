"""Log-probs of chosen tokens from hidden states, without ever holding the logits of more than a chunk of them.

Logits are `[picked, vocabulary]`: those of 16 384 tokens and a vocabulary of 151 936 are 10 GB in single precision, and
the plain way (softmax, entropy, their gradients) holds several such tensors. Here the forward pass goes chunk by chunk
and keeps one number a token, the log of the normaliser; the backward pass makes the logits of a chunk again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

CHUNK_LOGITS = 2**25
"""Logits of one chunk: 128 MiB in single precision, and one more of that size while it is worked on."""


def chunk_rows_for(vocabulary: int) -> int:
    """Rows of a chunk of about `CHUNK_LOGITS` logits."""
    return max(CHUNK_LOGITS // vocabulary, 1)


def selected_logprobs(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    temperature: Tensor,
    chunk_rows: int = 0,
    with_entropy: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """Log-probs `[picked]` of `targets` `[picked]` under softmax((hidden @ weight.T + bias) / temperature), and the
    entropy `[picked]` of those distributions in nats, both float32.

    `hidden` is `[picked, width]`, `weight` `[vocabulary, width]`, `bias` `[vocabulary]`, `temperature` `[picked]`. The
    gradient reaches `hidden`, `weight` and `bias` through the log-probs; the entropy is a measure and has none.
    `chunk_rows` rows are worked on at a time (0: `chunk_rows_for`); the gradient of the weights is summed in float32.
    """
    rows = chunk_rows or chunk_rows_for(weight.shape[0])
    logprobs, entropy = _SelectedLogprobs.apply(hidden, weight, bias, targets, temperature, rows, with_entropy)  # type: ignore[misc]
    return logprobs, entropy if with_entropy else None


def logprobs_of_logits(
    logits: Tensor, targets: Tensor, temperature: Tensor, chunk_rows: int = 0, with_entropy: bool = True
) -> tuple[Tensor, Tensor | None]:
    """The same from logits `[picked, vocabulary]` that are there already: what softmax and its gradient take besides is
    held for one chunk only."""
    found: list[tuple[Tensor, Tensor]] = []
    for part in _chunks(len(targets), chunk_rows or chunk_rows_for(logits.shape[-1])):
        arguments = (logits[part], targets[part], temperature[part], with_entropy)
        found.append(
            checkpoint(_plain, *arguments, use_reentrant=False) if logits.requires_grad else _plain(*arguments)
        )
    logprobs, entropy = (torch.cat(parts) for parts in zip(*found, strict=True))
    return logprobs, entropy if with_entropy else None


def _plain(logits: Tensor, targets: Tensor, temperature: Tensor, with_entropy: bool) -> tuple[Tensor, Tensor]:
    every = torch.log_softmax(logits.float() / temperature[:, None], dim=-1)
    entropy = _entropy(every.detach().clone()) if with_entropy else every.new_zeros(len(targets))
    return every.gather(1, targets[:, None])[:, 0], entropy


def _entropy(every: Tensor) -> Tensor:
    """`[rows]` of log-probs `[rows, vocabulary]`, which are overwritten. Half the time of
    `torch.special.entr`, which takes logarithms again."""
    probs = every.exp()
    # Where the probability is 0 so is what it adds, and not 0 × -inf.
    return probs.mul_(every.clamp_(min=torch.finfo(every.dtype).min)).sum(-1).neg_()


def _chunks(rows: int, chunk_rows: int) -> Iterator[slice]:
    for start in range(0, rows, chunk_rows) or [0]:
        yield slice(start, min(start + chunk_rows, rows))


class _SelectedLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: Tensor,
        chunk_rows: int,
        with_entropy: bool,
    ) -> tuple[Tensor, Tensor]:
        # The head runs in the precision of its weights, under autocast too: logits in half of it are too coarse.
        given, hidden = hidden, hidden.to(weight.dtype)
        picked = len(targets)
        logprobs = torch.empty(picked, dtype=torch.float32, device=hidden.device)
        entropy = torch.zeros(picked, dtype=torch.float32, device=hidden.device)
        normalisers = torch.empty(picked, dtype=torch.float32, device=hidden.device)
        for part in _chunks(picked, chunk_rows):
            logits = _logits(hidden[part], weight, bias, temperature[part])
            normalisers[part] = torch.logsumexp(logits, dim=-1)
            logprobs[part] = logits.gather(1, targets[part, None])[:, 0] - normalisers[part]
            if with_entropy:
                entropy[part] = _entropy(logits.sub_(normalisers[part, None]))
        ctx.save_for_backward(hidden, weight, bias, targets, temperature, normalisers)
        ctx.chunk_rows, ctx.dtype = chunk_rows, given.dtype
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        hidden, weight, bias, targets, temperature, normalisers = ctx.saved_tensors
        of_hidden, of_weight, of_bias = ctx.needs_input_grad[:3]
        scale = (gradients[0].float() / temperature)[:, None]
        grad_hidden = torch.empty_like(hidden) if of_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if of_weight else None
        grad_bias = torch.zeros_like(bias, dtype=torch.float32) if of_bias else None
        with torch.autocast(hidden.device.type, enabled=False):
            for part in _chunks(len(targets), ctx.chunk_rows):
                # d log p(target) / d logits = onehot(target) - p
                probs = _logits(hidden[part], weight, bias, temperature[part]).sub_(normalisers[part, None]).exp_()
                slope = probs.mul_(-scale[part]).scatter_add_(1, targets[part, None], scale[part])
                if grad_bias is not None:
                    grad_bias += slope.sum(0)
                slope = slope.to(weight.dtype)
                if grad_hidden is not None:
                    torch.mm(slope, weight, out=grad_hidden[part])
                if grad_weight is not None:
                    _add_product(grad_weight, slope.T, hidden[part])
        return (
            None if grad_hidden is None else grad_hidden.to(ctx.dtype),
            None if grad_weight is None else grad_weight.to(weight.dtype),
            None if grad_bias is None else grad_bias.to(bias.dtype),
            *(None,) * 4,
        )


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: Tensor) -> Tensor:
    """`[rows, vocabulary]` in float32, over the temperature; a tensor of its own, free to be written to."""
    with torch.autocast(hidden.device.type, enabled=False):
        logits = torch.nn.functional.linear(hidden, weight, bias).float()
    return logits.div_(temperature[:, None])


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right
