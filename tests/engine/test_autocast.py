"""bfloat16 autocast: the products of the layers in half the bits, everything that must be exact in float32."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError

from mempo.config.engine import ModelSettings
from mempo.config.train import LossSettings
from mempo.engine.logprobs import selected_logprobs
from mempo.engine.model import set_update_mode
from mempo.engine.policy import Policy
from mempo.engine.scorer import LocalScorer
from mempo.engine.update import TrainRow, Updater
from mempo.rollout.interfaces import ScoreRequest
from tests.engine.test_update import LR, ROWS, make_row, optim
from tests.tiny import make_tokenizer, tiny_llama

TOKENIZER = make_tokenizer()
BF16 = ModelSettings(autocast="bfloat16")


def recorded(policy: Policy, name: str) -> list[tuple[torch.dtype, torch.dtype]]:
    """(input, output) precision of a module, call by call."""
    found: list[tuple[torch.dtype, torch.dtype]] = []

    def note(module: Any, inputs: Any, output: Any) -> None:
        found.append((inputs[0].dtype, output.dtype))

    policy.model.get_submodule(name).register_forward_hook(note)
    return found


def test_layers_run_in_bfloat16_and_weights_moments_and_measures_in_float32() -> None:
    policy = set_update_mode(tiny_llama(TOKENIZER), BF16)
    updater = Updater(policy, optim())
    projections, embeddings = recorded(policy, "model.layers.0.mlp.up_proj"), recorded(policy, "model.norm")
    metrics = updater.rl_step(ROWS, LR)
    assert [out for _, out in projections] == [torch.bfloat16]
    assert [out for _, out in embeddings] == [torch.float32]
    assert {p.dtype for p in policy.model.parameters()} == {torch.float32}
    moments = [t for s in updater.optimizer.state_dict()["state"].values() for t in s.values()]
    assert {t.dtype for t in moments} == {torch.float32}
    assert metrics["update/skipped"] == 0


def test_the_gradient_is_that_of_float32_up_to_rounding() -> None:
    def moved(policy: Policy) -> torch.Tensor:
        before = torch.cat([p.detach().flatten().clone() for p in policy.model.parameters()])
        Updater(policy, optim(kind="adamw", max_grad_norm=1e9, beta1=0.0, beta2=0.0)).sft_step(
            [r.row for r in ROWS], LR
        )
        return torch.cat([p.detach().flatten() for p in policy.model.parameters()]) - before

    # Without moments AdamW moves by the sign of the gradient: nearly all signs agree.
    exact, rounded = moved(tiny_llama(TOKENIZER)), moved(set_update_mode(tiny_llama(TOKENIZER), BF16))
    assert float((exact.sign() == rounded.sign()).float().mean()) > 0.97
    assert not torch.equal(exact, rounded)


def test_head_and_softmax_are_exact_under_autocast() -> None:
    g = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(n, 8, generator=g).requires_grad_() for n in (5, 30))
    targets, ones = torch.arange(5), torch.ones(5)
    exact, _ = selected_logprobs(hidden, weight, None, targets, ones)
    with torch.autocast("cpu", torch.bfloat16):
        cast, _ = selected_logprobs(hidden, weight, None, targets, ones)
        assert (hidden @ weight.T).dtype == torch.bfloat16, "what it would be otherwise"
        gradients = torch.autograd.grad(cast.sum(), [hidden, weight])
    assert torch.equal(exact, cast)
    for a, b in zip(torch.autograd.grad(exact.sum(), [hidden, weight]), gradients, strict=True):
        assert torch.equal(a, b)


def test_scoring_stays_in_the_precision_of_the_weights() -> None:
    request = ScoreRequest((5, 6, 7), (8, 9))
    plain, cast = (
        LocalScorer(p).score([request])[0]
        for p in (tiny_llama(TOKENIZER), set_update_mode(tiny_llama(TOKENIZER), BF16))
    )
    assert plain.tolist() == cast.tolist()


def test_the_difference_from_the_sampler_is_measured() -> None:
    policy = tiny_llama(TOKENIZER)
    rows = []
    for train_row in (make_row(n) for n in range(4)):
        row = train_row.row
        which = [p - 1 for s in row.segments for p in range(s.start, s.stop)]
        scored = LocalScorer(policy).score([ScoreRequest(row.ids[:1], row.ids[1:], tuple(which))])[0]
        old = dict(zip(which, scored.tolist(), strict=True))
        rows.append(TrainRow(row, train_row.advantages, [old.get(p - 1, 0.0) for p in range(len(row.ids))]))
    exact = Updater(policy, optim()).rl_step(rows, 1e-9)["update/k3_old"]
    rounded = Updater(set_update_mode(tiny_llama(TOKENIZER), BF16), optim()).rl_step(rows, 1e-9)["update/k3_old"]
    assert exact < 1e-9
    assert 1e-7 < rounded < 1e-2


def test_the_reference_is_measured_in_the_same_precision() -> None:
    # A policy that has not moved is its reference, to the last bit; otherwise the KL term would pull at rounding.
    policy = set_update_mode(tiny_llama(TOKENIZER), BF16)
    metrics = Updater(policy, optim(), LossSettings(kl="k3", kl_coef=0.1), tiny_llama(TOKENIZER)).rl_step(ROWS, LR)
    assert metrics["update/kl"] == 0


def test_it_is_for_float32_weights() -> None:
    with pytest.raises(ValidationError, match="autocast bfloat16 is for weights in float32, and dtype is bfloat16"):
        ModelSettings(autocast="bfloat16", dtype="bfloat16")
