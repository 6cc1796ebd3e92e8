"""Gradient checkpointing changes memory, never the result."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mempo.config.engine import ModelSettings
from mempo.config.train import LossSettings
from mempo.engine.checkpointing import checkpointable_layers, checkpointed
from mempo.engine.model import set_update_mode
from mempo.engine.policy import Policy
from mempo.engine.update import Updater
from mempo.errors import UserError
from tests.engine.test_update import LR, ROWS, assert_same_weights, optim
from tests.tiny import make_tokenizer, tiny_llama, tiny_model

TOKENIZER = make_tokenizer()
FAMILIES = ("llama", "qwen2", "gpt_neox", "gpt2", "gemma2")
ON = ModelSettings(gradient_checkpointing=True)


def count_layers(policy: Policy) -> list[int]:
    """How often a layer is computed, written into a list of one number."""
    calls = [0]

    def one_more(*_: Any) -> None:
        calls[0] += 1

    for layer in checkpointable_layers(policy.model):
        # The first module inside a layer: it runs whenever the layer does, wrapped or not.
        next(layer.children()).register_forward_pre_hook(one_more)
    return calls


@pytest.mark.parametrize("family", FAMILIES)
def test_the_step_is_the_same(family: str) -> None:
    policies = (tiny_model(family, TOKENIZER), set_update_mode(tiny_model(family, TOKENIZER), ON))
    settings = LossSettings(kl="k3", kl_coef=0.1)
    metrics = [
        Updater(p, optim(60), settings, tiny_model(family, TOKENIZER, seed=1)).rl_step(ROWS, LR) for p in policies
    ]
    assert_same_weights(*policies)
    assert metrics[0] == pytest.approx(metrics[1], abs=1e-6)


def test_layers_are_computed_once_more_in_the_update_and_nowhere_else() -> None:
    policy = set_update_mode(tiny_llama(TOKENIZER), ON)
    updater, ids = Updater(policy, optim()), torch.tensor([[5, 6, 7]])
    calls = count_layers(policy)
    updater.sft_step([ROWS[0].row], LR)
    assert calls == [2 * 2], "two layers, forward and again"
    with torch.enable_grad():
        policy.model(input_ids=ids).logits.sum().backward()
    assert calls == [2 * 2 + 2], "an ordinary pass with gradients is left alone"
    assert not any(module.training for module in policy.model.modules())


def test_less_is_kept_for_the_backward_pass() -> None:
    def kept_bytes(policy: Policy) -> int:
        kept: list[torch.Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
            hidden = policy.model.base_model(input_ids=torch.arange(50)[None], use_cache=False).last_hidden_state
        assert hidden.requires_grad
        weights = {p.untyped_storage().data_ptr() for p in policy.model.parameters()}
        stores = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in kept}
        return sum(size for place, size in stores.items() if place not in weights)

    policy = tiny_llama(TOKENIZER, num_hidden_layers=6)
    plain = kept_bytes(policy)
    with checkpointed(policy.model):
        assert kept_bytes(policy) < plain / 3


def test_dropout_stays_off() -> None:
    policies = []
    for on in (False, True):
        policy = tiny_model("gpt2", TOKENIZER, resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5)
        policy.checkpointing = on
        Updater(policy, optim()).sft_step([r.row for r in ROWS], LR)
        policies.append(policy)
    assert_same_weights(*policies)


def test_layers_are_as_they_were_after_an_error() -> None:
    policy = tiny_llama(TOKENIZER)
    with pytest.raises(KeyError), checkpointed(policy.model):
        raise KeyError
    assert not any("forward" in vars(layer) for layer in checkpointable_layers(policy.model))


def test_a_model_without_such_layers_is_refused() -> None:
    with pytest.raises(UserError, match=r"Linear has no layers that can be checkpointed; leave model.gradient_check"):
        checkpointable_layers(torch.nn.Linear(2, 2))
