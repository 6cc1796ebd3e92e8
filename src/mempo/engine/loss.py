"""The loss: clipped surrogate, KL to a reference, and how tokens are averaged. Pure functions on tensors.

    ratio  = exp(logp_new - logp_old)
    policy = - min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A)
    loss   = sum over generated tokens of  weight * (policy + kl_coef * kl)

(PPO, arXiv 1707.06347, as used by MemPO, arXiv 2603.00680.) The gradient flows through `logp_new` alone. Weights are
made for the whole batch first, so the sums over any split into micro-batches add up to the same loss.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mempo.config.train import Aggregate, KLKind, LossSettings


def kl_estimate(logp_new: Tensor, logp_ref: Tensor, kind: KLKind) -> Tensor:
    """Per-token estimates of KL(policy || reference) from tokens that the policy sampled; shape of the inputs.

    With d = logp_ref - logp_new:

    | kind | value           | unbiased value | expected gradient, samples held fixed |
    |------|-----------------|----------------|---------------------------------------|
    | k1   | -d              | yes            | 0                                     |
    | k2   | d^2 / 2         | no             | that of KL(policy || reference)       |
    | k3   | exp(d) - d - 1  | yes, >= 0      | that of KL(reference || policy)       |

    The sign of d matters: exp(-d) + d - 1 is an unbiased estimate of nothing here.
    """
    d = logp_ref - logp_new
    if kind == "k1":
        return -d
    if kind == "k2":
        return d.square() / 2
    if kind == "k3":
        return torch.expm1(d) - d
    raise ValueError(f"unknown KL estimator {kind!r}; known: k1, k2, k3")


def clipped_surrogate(
    logp_new: Tensor, logp_old: Tensor, advantages: Tensor, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor]:
    """Per-token loss and an indicator (1.0 where the clipped branch was taken, so no gradient flows); both in the shape
    of the inputs."""
    ratio = torch.exp(logp_new - logp_old)
    plain = ratio * advantages
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    return -torch.minimum(plain, clipped), (clipped < plain).to(plain.dtype)


def token_weights(
    generated_tokens_per_row: Sequence[int], rollout_of_row: Sequence[int], aggregate: Aggregate
) -> list[float]:
    """The weight of one generated token, by row, for the whole batch: the sum of weight * token loss is the mean asked
    for, however the rows are split into micro-batches.

    `rollout_mean` is the mean over rollouts of the mean over all their generated tokens, whatever rows these lie in.
    Rollouts without generated tokens have no mean and do not count; rows without any weigh 0.

    Raises:
        ValueError: the two lists differ in length, or a count is negative.
    """
    if len(generated_tokens_per_row) != len(rollout_of_row):
        raise ValueError(f"{len(generated_tokens_per_row)} token counts for {len(rollout_of_row)} rows")
    if min(generated_tokens_per_row, default=0) < 0:
        raise ValueError(f"negative token count {min(generated_tokens_per_row)}")
    if aggregate == "token_mean":
        total = sum(generated_tokens_per_row)
        return [1 / total if n else 0.0 for n in generated_tokens_per_row]
    if aggregate != "rollout_mean":
        raise ValueError(f"unknown aggregate {aggregate!r}; known: token_mean, rollout_mean")
    tokens: dict[int, int] = {}
    for n, rollout in zip(generated_tokens_per_row, rollout_of_row, strict=True):
        tokens[rollout] = tokens.get(rollout, 0) + n
    rollouts = sum(n > 0 for n in tokens.values())
    return [
        1 / (rollouts * tokens[rollout]) if n else 0.0
        for n, rollout in zip(generated_tokens_per_row, rollout_of_row, strict=True)
    ]


def policy_loss(
    logp_new: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    weights: Tensor | float,
    settings: LossSettings,
    logp_ref: Tensor | None = None,
    entropy: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of one micro-batch, a scalar to be summed over micro-batches, and its statistics.

    All tensors are `[tokens]` or `[rows, tokens]`; `mask` is 1 on generated tokens and 0 elsewhere, where the other
    tensors may hold anything, NaN included. `weights` (from `token_weights`) must broadcast to that shape.

    The statistics are detached scalars, weighted like the loss: summed over micro-batches they are means over the
    batch. Always `policy`, `ratio`, `clip_fraction` and `k3_old` (KL of the new policy from the old); `k3` with a
    reference, `kl` with a KL term, `entropy` when given.

    Raises:
        ValueError: shapes differ, or `settings.kl` asks for a reference and there is none.
    """
    given = {"logp_old": logp_old, "advantages": advantages, "mask": mask, "logp_ref": logp_ref, "entropy": entropy}
    for name, tensor in given.items():
        if tensor is not None and tensor.shape != logp_new.shape:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}, logp_new {tuple(logp_new.shape)}")
    if settings.kl != "none" and logp_ref is None:
        raise ValueError(f"kl {settings.kl} needs logp_ref, the log-probs of the reference policy")

    inside = mask > 0
    dtype = torch.promote_types(logp_new.dtype, torch.float32)  # never less than single precision
    weight = torch.as_tensor(weights, dtype=dtype, device=logp_new.device) * inside

    def only(values: Tensor) -> Tensor:
        # Multiplying by the mask would let a NaN of the padding through; choosing does not.
        return torch.where(inside, values.to(dtype), 0.0)

    def mean(values: Tensor) -> Tensor:
        return (weight * only(values)).sum()

    new, old = only(logp_new), only(logp_old).detach()
    surrogate, clipped = clipped_surrogate(new, old, only(advantages).detach(), settings.clip_low, settings.clip_high)
    loss = mean(surrogate)
    stats = {
        "policy": loss,
        "ratio": mean(torch.exp(new - old)),
        "clip_fraction": mean(clipped),
        "k3_old": mean(kl_estimate(new, old, "k3")),
    }
    if logp_ref is not None:
        ref = only(logp_ref).detach()
        stats["k3"] = mean(kl_estimate(new, ref, "k3"))
        if settings.kl != "none":
            stats["kl"] = mean(kl_estimate(new, ref, settings.kl))
            loss = loss + settings.kl_coef * stats["kl"]
    if entropy is not None:
        stats["entropy"] = mean(entropy)
    return loss, {name: value.detach() for name, value in stats.items()}
