"""Adapters: they change nothing before they are trained, are all that is trained, and leave the reference as it was."""

from __future__ import annotations

import builtins
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file

from mempo.config.engine import LoraSettings, ModelSettings
from mempo.config.train import LossSettings, OptimSettings
from mempo.engine.lora import add_lora, is_adapter_folder, merge_lora, require_peft
from mempo.engine.model import load_policy, save_policy, save_trained, wrap_policy
from mempo.engine.policy import Policy
from mempo.engine.scorer import LocalScorer
from mempo.engine.update import Updater
from mempo.errors import UserError
from mempo.rollout.interfaces import ScoreRequest
from tests.engine.families import family_model
from tests.engine.test_update import LR, ROWS, assert_same_weights, optim
from tests.tiny import make_tokenizer, tiny_llama, tiny_model

TOKENIZER = make_tokenizer()
IDS = torch.tensor([[5, 6, 7, 8, 9, 10]])
SETTINGS = LoraSettings(rank=4, alpha=8)
CPU = ModelSettings(device="cpu")


def logits(policy: Policy) -> torch.Tensor:
    with torch.no_grad():
        return policy.model(input_ids=IDS).logits


def adapted(family: str = "llama", settings: LoraSettings = SETTINGS, base_path: str = "../base") -> Policy:
    return add_lora(tiny_model(family, TOKENIZER), settings, seed=0, base_path=base_path)


def trained(family: str = "llama", base_path: str = "../base") -> Policy:
    policy = adapted(family, base_path=base_path)
    updater = Updater(policy, optim())
    for _ in range(3):
        updater.rl_step(ROWS, LR)
    return policy


FAMILIES = pytest.mark.parametrize("family", ["llama", "qwen2", "gpt_neox", "gpt2"])


@FAMILIES
def test_a_fresh_adapter_changes_nothing(family: str) -> None:
    torch.testing.assert_close(logits(adapted(family)), logits(tiny_model(family, TOKENIZER)), rtol=0, atol=0)


@FAMILIES
def test_only_the_adapter_is_trained(family: str) -> None:
    policy = trained(family)
    assert policy.adapter is not None
    assert float((logits(policy) - logits(tiny_model(family, TOKENIZER))).abs().max()) > 1e-2
    assert_same_weights(policy.adapter.base, tiny_model(family, TOKENIZER), atol=0)
    torch.testing.assert_close(logits(policy.adapter.base), logits(tiny_model(family, TOKENIZER)), rtol=0, atol=0)


def test_the_policy_without_its_adapter_is_no_second_copy() -> None:
    policy = adapted()
    assert policy.adapter is not None
    frozen = {p.data_ptr() for p in policy.model.parameters() if not p.requires_grad}
    assert {p.data_ptr() for p in policy.adapter.base.model.parameters()} == frozen
    assert {id(p) for p in policy.adapter.base.model.parameters()} <= {id(p) for p in policy.model.parameters()}


def test_the_sizes_are_those_of_the_formula() -> None:
    # Every linear layer of [out, in] gets rank * (out + in) numbers: four of 32 x 32 and three of 32 x 64, two layers.
    numbers = sum(p.numel() for p in adapted().model.parameters() if p.requires_grad)
    assert numbers == 2 * 4 * (4 * (32 + 32) + 3 * (32 + 64))
    two = adapted(settings=LoraSettings(rank=4, targets=("q_proj", "v_proj")))
    assert sum(p.numel() for p in two.model.parameters() if p.requires_grad) == 2 * 4 * 2 * (32 + 32)
    optimizer = Updater(two, OptimSettings()).optimizer
    assert sum(p.numel() for g in optimizer.param_groups for p in g["params"]) == 2 * 4 * 2 * (32 + 32)


def test_the_adapter_adds_alpha_over_rank_times_its_product() -> None:
    policy = trained()
    weights = dict(policy.model.named_parameters())
    name = "model.layers.1.mlp.up_proj"
    a, b = (weights[f"{name}.lora_{x}.default.weight"] for x in "AB")
    expected = weights[f"{name}.base_layer.weight"] + 8 / 4 * b @ a
    merged = merge_lora(policy).model.get_parameter(f"{name}.weight")
    torch.testing.assert_close(merged, expected, rtol=0, atol=1e-6)


def test_the_start_depends_on_the_seed_alone() -> None:
    made = [tiny_llama(TOKENIZER) for _ in range(3)]
    torch.manual_seed(1)
    first = add_lora(made[0], SETTINGS, seed=7, base_path="../base")
    torch.manual_seed(2)
    before = torch.random.get_rng_state()
    second = add_lora(made[1], SETTINGS, seed=7, base_path="../base")
    assert torch.equal(before, torch.random.get_rng_state()), "nobody else's numbers change"
    assert_same_weights(first, second, atol=0)
    with pytest.raises(AssertionError):
        assert_same_weights(first, add_lora(made[2], SETTINGS, seed=8, base_path="../base"))


def test_the_gradient_of_a_merged_model_agrees() -> None:
    # d loss / d B = scale * (d loss / d W) A^T, with d loss / d W from a plain model that has the merged weights.
    policy = trained()
    name = "model.layers.0.self_attn.o_proj"
    a = policy.model.get_parameter(f"{name}.lora_A.default.weight")
    policy.model(input_ids=IDS).logits.log_softmax(-1)[0, :, 7].sum().backward()
    ours = policy.model.get_parameter(f"{name}.lora_B.default.weight").grad
    plain = merge_lora(policy)
    plain.model(input_ids=IDS).logits.log_softmax(-1)[0, :, 7].sum().backward()
    whole = plain.model.get_parameter(f"{name}.weight").grad
    assert whole is not None
    torch.testing.assert_close(ours, 8 / 4 * whole @ a.T, rtol=1e-4, atol=1e-4)


def test_the_reference_gives_the_divergence_and_the_scores_of_the_start() -> None:
    policy = trained()
    assert policy.adapter is not None
    start = tiny_llama(TOKENIZER)
    request = ScoreRequest((5, 6, 7), (8, 9, 10))
    assert (
        LocalScorer(policy.adapter.base).score([request])[0].tolist() == LocalScorer(start).score([request])[0].tolist()
    )
    assert LocalScorer(policy).score([request])[0].tolist() != LocalScorer(start).score([request])[0].tolist()
    loss = LossSettings(kl="k3", kl_coef=0.1)
    shared = Updater(policy, optim(), loss, policy.adapter.base).rl_step(ROWS, 1e-9)
    assert shared["update/k3"] > 1e-4
    again = Updater(trained(), optim(), loss, start).rl_step(ROWS, 1e-9)
    assert shared == pytest.approx(again, abs=1e-6)


def test_half_precision_weights_have_an_adapter_in_single_precision() -> None:
    model = tiny_llama(TOKENIZER)
    model.model.to(torch.bfloat16)  # type: ignore[arg-type]
    policy = add_lora(model, SETTINGS, 0, "../base")
    trainable = {p.dtype for p in policy.model.parameters() if p.requires_grad}
    assert trainable == {torch.float32}
    assert Updater(policy, optim()).rl_step(ROWS, LR)["update/skipped"] == 0
    assert merge_lora(policy).model.dtype == torch.bfloat16


# --- folders -------------------------------------------------------------------------------------------------------


def test_a_checkpoint_holds_the_adapter_alone_and_loads_onto_its_base(tmp_path: Path) -> None:
    save_policy(tiny_llama(TOKENIZER), tmp_path / "base")
    policy = trained()
    save_trained(policy, tmp_path / "checkpoint")
    held = load_file(tmp_path / "checkpoint" / "adapter_model.safetensors")
    assert sum(t.numel() for t in held.values()) == sum(p.numel() for p in policy.model.parameters() if p.requires_grad)
    assert not list((tmp_path / "checkpoint").glob("model*.safetensors"))
    assert is_adapter_folder(str(tmp_path / "checkpoint"))
    loaded = load_policy(CPU, str(tmp_path / "checkpoint"))
    assert_same_weights(policy, loaded, atol=0)
    assert loaded.tokenizer.encode_trusted("<mem>x</mem>") == TOKENIZER.encode_trusted("<mem>x</mem>")
    assert loaded.window == policy.window
    assert [p.requires_grad for p in loaded.model.parameters()] == [p.requires_grad for p in policy.model.parameters()]


def test_the_checkpoint_is_in_the_format_of_peft(tmp_path: Path) -> None:
    from peft import PeftModel

    policy = trained(base_path=str(tmp_path / "base"))
    save_trained(policy, tmp_path / "checkpoint")
    theirs: Any = PeftModel.from_pretrained(tiny_llama(TOKENIZER).model, str(tmp_path / "checkpoint"))
    with torch.no_grad():
        torch.testing.assert_close(theirs(input_ids=IDS).logits, logits(policy), rtol=0, atol=1e-6)


@FAMILIES
def test_the_final_folder_is_a_plain_model(family: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    policy = trained(family)
    save_policy(policy, tmp_path / "final")
    assert not is_adapter_folder(str(tmp_path / "final"))
    plain: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "final")
    with torch.no_grad():
        torch.testing.assert_close(plain(input_ids=IDS).logits, logits(policy), rtol=1e-4, atol=1e-4)
    assert plain.state_dict().keys() == tiny_model(family, TOKENIZER).model.state_dict().keys()
    assert policy.adapter is not None
    assert_same_weights(policy.adapter.base, tiny_model(family, TOKENIZER), atol=0)


def test_folders_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    save_policy(tiny_llama(TOKENIZER), tmp_path / "base")
    save_trained(trained(), tmp_path / "adapter")
    weights = tmp_path / "adapter" / "adapter_model.safetensors"
    whole = load_file(weights)
    save_file({name: t for name, t in whole.items() if "up_proj" not in name}, weights)
    with pytest.raises(UserError, match=r"does not fit the model \.\./base: 4 of 28 tensors are missing .*up_proj"):
        load_policy(CPU, str(tmp_path / "adapter"))
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(UserError, match=r"the adapter in .* cannot be loaded"):
        load_policy(CPU, str(tmp_path / "adapter"))
    save_file(whole, weights)
    config = tmp_path / "adapter" / "adapter_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "base_model_name_or_path": "/nowhere"}))
    with pytest.raises(UserError, match="no model folder '/nowhere'"):
        load_policy(CPU, str(tmp_path / "adapter"))


# --- families -----------------------------------------------------------------------------------------------------

EXPERTS = ["deepseek_v3", "ernie4_5_moe", "llama4_text", "minimax_m2", "mixtral", "olmoe", "phimoe", "qwen3_moe"]
HYBRIDS = ["bamba", "lfm2", "qwen3_5", "qwen3_next"]


@pytest.mark.parametrize("family", [*EXPERTS, *HYBRIDS])
def test_adapters_on_experts_and_hybrids_are_merged_right(family: str, tmp_path: Path) -> None:
    policy = add_lora(wrap_policy(family_model(family), TOKENIZER), SETTINGS, seed=0, base_path="../base")
    save_policy(policy, tmp_path / "base")  # a fresh adapter adds nothing
    before = logits(policy)
    updater = Updater(policy, optim())
    for _ in range(3):
        updater.rl_step(ROWS, LR)
    after = logits(policy)
    assert float((after - before).abs().max()) > 1e-3
    save_trained(policy, tmp_path / "checkpoint")
    save_policy(policy, tmp_path / "final")
    attention: Any = policy.model.config._attn_implementation
    settings = ModelSettings(device="cpu", attention=attention)
    for folder in ("checkpoint", "final"):
        torch.testing.assert_close(logits(load_policy(settings, str(tmp_path / folder))), after, rtol=0, atol=5e-5)
    torch.testing.assert_close(logits(merge_lora(policy)), after, rtol=0, atol=5e-5)


def test_an_adapter_that_would_not_be_merged_is_refused_before_training() -> None:
    """jamba reads the weight of dt_proj and does not call the layer."""
    message = r"JambaForCausalLM cannot have an adapter on dt_proj: .* set model\.lora\.targets=\[(.*)\]"
    with pytest.raises(UserError, match=message) as caught:
        add_lora(wrap_policy(family_model("jamba"), TOKENIZER), SETTINGS, seed=0, base_path="x")
    found = re.search(message, str(caught.value))
    assert found is not None
    targets = tuple(found.group(1).split(", "))
    assert "dt_proj" not in targets
    add_lora(
        wrap_policy(family_model("jamba"), TOKENIZER), LoraSettings(rank=4, targets=targets), seed=0, base_path="x"
    )


def test_layers_that_peft_refuses_are_refused_with_those_that_work() -> None:
    with pytest.raises(UserError, match=r"'out_proj'.*; model\.lora\.targets may name dt_proj, in_proj, x_proj"):
        add_lora(wrap_policy(family_model("mamba"), TOKENIZER), SETTINGS, seed=0, base_path="x")


# --- what is refused -----------------------------------------------------------------------------------------------


def test_settings_that_cannot_work() -> None:
    with pytest.raises(ValidationError, match="targets names no layer"):
        LoraSettings(targets=())


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (
            ("v_proj", "q_prj"),
            r"names 'q_prj', which is not a linear layer .*; there are down_proj, gate_proj, k_proj, ",
        ),
        (("lm_head", "q_proj"), "names 'lm_head', which is not a linear layer inside the model"),
        (("embed_tokens",), "names 'embed_tokens', which is not a linear layer inside the model"),
    ],
)
def test_layers_that_cannot_have_one_are_refused(targets: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        adapted(settings=LoraSettings(targets=targets))


def test_peft_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any, **keywords: Any) -> Any:
        if name == "peft":
            raise ImportError("No module named 'peft'")
        return real(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match=r"adapters need peft \(No module named 'peft'\); pip install 'mempo\[lora\]'"):
        require_peft()
