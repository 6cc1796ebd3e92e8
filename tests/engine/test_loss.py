from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mempo.config.train import Aggregate, KLKind, LossSettings
from mempo.engine.loss import clipped_surrogate, kl_estimate, policy_loss, token_weights

PLAIN = LossSettings()


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# --- KL ------------------------------------------------------------------------------------------------------------


def test_estimators_by_hand() -> None:
    new, ref = tensor(-1.0, -2.0), tensor(-1.5, -1.0)
    assert kl_estimate(new, ref, "k1").tolist() == pytest.approx([0.5, -1.0])
    assert kl_estimate(new, ref, "k2").tolist() == pytest.approx([0.125, 0.5])
    assert kl_estimate(new, ref, "k3").tolist() == pytest.approx([math.exp(-0.5) - 0.5, math.e - 2])
    with pytest.raises(ValueError, match="k4"):
        kl_estimate(new, ref, "k4")  # type: ignore[arg-type]


LOGITS = tensor(0.3, -0.8, 1.1)
REFERENCE = torch.log_softmax(tensor(-0.5, 0.4, 0.2), 0)


def expected(kind: KLKind) -> tuple[float, list[float]]:
    """Value and gradient by the logits of an estimator, averaged exactly over the three tokens that may be sampled."""
    logits = LOGITS.clone().requires_grad_()
    logp = torch.log_softmax(logits, 0)
    chances = logp.exp().detach()  # the sample does not move with the policy
    value = (chances * kl_estimate(logp, REFERENCE, kind)).sum()
    value.backward()
    assert logits.grad is not None
    return value.item(), logits.grad.tolist()


def exact(divergence: Callable[[Tensor], Tensor]) -> tuple[float, list[float]]:
    logits = LOGITS.clone().requires_grad_()
    value = divergence(torch.log_softmax(logits, 0))
    value.backward()
    assert logits.grad is not None
    return value.item(), logits.grad.tolist()


def test_which_estimator_is_unbiased_in_what() -> None:
    forward, forward_gradient = exact(lambda logp: (logp.exp() * (logp - REFERENCE)).sum())
    _, reverse_gradient = exact(lambda logp: (REFERENCE.exp() * (REFERENCE - logp)).sum())
    assert max(map(abs, forward_gradient)) > 0.1
    assert forward_gradient != pytest.approx(reverse_gradient, abs=0.01)

    assert expected("k1")[0] == pytest.approx(forward)
    assert expected("k2")[0] != pytest.approx(forward, rel=0.01)
    assert expected("k3")[0] == pytest.approx(forward)

    assert expected("k1")[1] == pytest.approx([0, 0, 0], abs=1e-12)
    assert expected("k2")[1] == pytest.approx(forward_gradient)
    assert expected("k3")[1] == pytest.approx(reverse_gradient)


def test_the_sign_of_d_is_the_unbiased_one() -> None:
    """With d the other way round, k3 is no estimate of the KL."""
    chances = torch.log_softmax(LOGITS, 0).exp()
    wrong = (chances * kl_estimate(REFERENCE, torch.log_softmax(LOGITS, 0), "k3")).sum().item()
    assert wrong != pytest.approx(expected("k3")[0], rel=0.05)


@given(st.floats(-20, 0), st.floats(-20, 0))
def test_k3_is_never_negative(new: float, ref: float) -> None:
    assert kl_estimate(tensor(new), tensor(ref), "k3").item() >= 0


# --- surrogate -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "clipped"),
    [
        (1.0, 2.0, -2.0, 0),
        (1.1, 2.0, -2.2, 0),
        (1.5, 2.0, -2.6, 1),  # 1 + 0.3
        (0.5, 2.0, -1.0, 0),  # the smaller of 1.0 and 1.6
        (1.5, -2.0, 3.0, 0),
        (0.5, -2.0, 1.6, 1),  # 1 - 0.2
        (1.5, 0.0, 0.0, 0),
    ],
)
def test_surrogate_by_hand(ratio: float, advantage: float, loss: float, clipped: int) -> None:
    new = tensor(math.log(ratio) - 1).requires_grad_()
    value, indicator = clipped_surrogate(new, tensor(-1.0), tensor(advantage), 0.2, 0.3)
    assert (value.item(), indicator.item()) == (pytest.approx(loss), clipped)
    value.sum().backward()
    assert new.grad is not None
    # Where nothing is clipped the gradient is -ratio * A; where it is, there is none.
    assert new.grad.item() == pytest.approx(0.0 if clipped else -ratio * advantage)


# --- weights -------------------------------------------------------------------------------------------------------


def test_weights_by_hand() -> None:
    assert token_weights([2, 3, 5], [0, 0, 1], "token_mean") == [0.1] * 3
    assert token_weights([2, 3, 5], [0, 0, 1], "rollout_mean") == pytest.approx([0.1, 0.1, 0.1])
    assert token_weights([1, 3, 2], [0, 0, 1], "rollout_mean") == pytest.approx([1 / 8, 1 / 8, 1 / 4])
    # A rollout without tokens has no mean: it does not thin out the others.
    assert token_weights([4, 0], [0, 1], "rollout_mean") == [0.25, 0.0]
    assert token_weights([4, 0], [0, 1], "token_mean") == [0.25, 0.0]


@pytest.mark.parametrize("aggregate", ["token_mean", "rollout_mean"])
def test_no_tokens_no_weights(aggregate: Aggregate) -> None:
    assert token_weights([], [], aggregate) == []
    assert token_weights([0, 0], [0, 1], aggregate) == [0.0, 0.0]


def test_weights_refuse_what_cannot_be() -> None:
    with pytest.raises(ValueError, match="2 token counts for 1 rows"):
        token_weights([1, 2], [0], "token_mean")
    with pytest.raises(ValueError, match="negative token count -1"):
        token_weights([1, -1], [0, 0], "token_mean")
    with pytest.raises(ValueError, match="unknown aggregate"):
        token_weights([1], [0], "sum")  # type: ignore[arg-type]


COUNTS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3)), min_size=1, max_size=8)


@given(COUNTS, st.sampled_from(["token_mean", "rollout_mean"]))
def test_weights_make_the_mean_they_are_named_for(rows: list[tuple[int, int]], aggregate: Aggregate) -> None:
    rng = random.Random(0)
    counts, rollouts = [n for n, _ in rows], [r for _, r in rows]
    losses = [[rng.random() for _ in range(n)] for n in counts]
    weights = token_weights(counts, rollouts, aggregate)
    found = sum(w * sum(row) for w, row in zip(weights, losses, strict=True))
    if aggregate == "token_mean":
        tokens = [x for row in losses for x in row]
        wanted = sum(tokens) / len(tokens) if tokens else 0.0
    else:
        by_rollout: dict[int, list[float]] = {}
        for rollout, row in zip(rollouts, losses, strict=True):
            by_rollout.setdefault(rollout, []).extend(row)
        means = [sum(xs) / len(xs) for xs in by_rollout.values() if xs]
        wanted = sum(means) / len(means) if means else 0.0
    assert found == pytest.approx(wanted)


# --- the whole loss ------------------------------------------------------------------------------------------------


def batch(seed: int = 0, counts: tuple[int, ...] = (3, 5, 2, 4)) -> dict[str, Tensor]:
    """Padded `[rows, tokens]`; NaN wherever no token was generated."""
    generator = torch.Generator().manual_seed(seed)
    shape = (len(counts), max(counts) + 2)
    mask = torch.zeros(shape, dtype=torch.float64)
    for row, n in enumerate(counts):
        mask[row, 1 : 1 + n] = 1

    def noise(scale: float) -> Tensor:
        values = torch.randn(shape, generator=generator, dtype=torch.float64) * scale
        return torch.where(mask > 0, values, torch.nan)

    old = -noise(1.0).abs()
    given = {"logp_old": old, "logp_new": old + noise(0.3), "logp_ref": old + noise(0.5)}
    return {**given, "advantages": noise(1.0), "mask": mask, "entropy": noise(1.0).abs()}


def test_loss_by_hand() -> None:
    """Ratios 1 and 1.5 with advantages 1 and 2, weights 1/2; KL k2 of d = 0.2 and 0."""
    settings = LossSettings(kl="k2", kl_coef=0.1)
    new = tensor(-1.0, math.log(1.5) - 2)
    loss, stats = policy_loss(
        new, tensor(-1.0, -2.0), tensor(1.0, 2.0), tensor(1, 1), 0.5, settings, logp_ref=new + tensor(0.2, 0.0)
    )
    policy = -(1.0 + 1.2 * 2) / 2
    assert loss.item() == pytest.approx(policy + 0.1 * 0.02 / 2)
    assert {name: value.item() for name, value in stats.items()} == pytest.approx(
        {
            "policy": policy,
            "ratio": 1.25,
            "clip_fraction": 0.5,
            "k3_old": (1 / 1.5 - 1 - math.log(1 / 1.5)) / 2,
            "kl": 0.01,
            "k3": (math.exp(0.2) - 1.2) / 2,
        }
    )


def test_gradient_flows_through_the_new_log_probs_alone() -> None:
    given = {name: values.clone().requires_grad_(name != "mask") for name, values in batch().items()}
    loss, stats = policy_loss(**given, weights=0.1, settings=LossSettings(kl="k3", kl_coef=0.5))
    loss.backward()
    assert given["logp_new"].grad is not None
    assert all(given[name].grad is None for name in ("logp_old", "logp_ref", "advantages", "entropy"))
    assert not any(value.requires_grad for value in stats.values())


def test_only_generated_tokens_are_seen() -> None:
    """Three sampled tokens and ten retrieved ones: loss, KL, entropy and clip fraction see the three."""
    given = batch(counts=(3,))
    wide = {
        name: torch.cat([values, torch.full((1, 10), 0.0 if name == "mask" else torch.nan)], 1)
        for name, values in given.items()
    }
    given["logp_new"].requires_grad_()
    wide["logp_new"].requires_grad_()
    settings = LossSettings(kl="k3", kl_coef=0.1)
    loss, stats = policy_loss(**given, weights=1 / 3, settings=settings)
    wide_loss, wide_stats = policy_loss(**wide, weights=1 / 3, settings=settings)
    assert math.isfinite(loss.item())
    assert wide_loss.item() == loss.item()
    assert wide_stats == stats
    assert 0 < stats["entropy"].item() == pytest.approx(torch.nanmean(given["entropy"]).item())
    wide_loss.backward()
    assert wide["logp_new"].grad is not None
    moved = wide["logp_new"].grad[0] != 0
    assert not torch.isnan(wide["logp_new"].grad).any()
    assert not (moved & (wide["mask"][0] == 0)).any()


def test_what_was_not_given_is_not_reported() -> None:
    given = batch()
    del given["logp_ref"], given["entropy"]
    assert set(policy_loss(**given, weights=0.1, settings=PLAIN)[1]) == {"policy", "ratio", "clip_fraction", "k3_old"}
    with pytest.raises(ValueError, match="kl k3 needs logp_ref"):
        policy_loss(**given, weights=0.1, settings=LossSettings(kl="k3", kl_coef=0.1))


def test_half_precision_is_widened() -> None:
    given = {name: values.to(torch.bfloat16) for name, values in batch().items()}
    loss, _ = policy_loss(**given, weights=0.1, settings=PLAIN)
    assert loss.dtype == torch.float32


def test_shapes_must_agree() -> None:
    given = batch()
    given["advantages"] = given["advantages"][:, :-1]
    with pytest.raises(ValueError, match=r"advantages has shape \(4, 6\), logp_new \(4, 7\)"):
        policy_loss(**given, weights=0.1, settings=PLAIN)


def test_k1_in_the_loss_is_warned_about() -> None:
    with pytest.warns(UserWarning, match="k1 as a loss term has a gradient of zero on average"):
        LossSettings(kl="k1", kl_coef=0.1)
