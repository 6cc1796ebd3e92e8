"""Digests of weights: the same on both sides whatever vLLM does to their layout, another one when a number differs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mempo.config.engine import LoraSettings
from mempo.engine.lora import add_lora, merged_weights
from mempo.engine.vllm_weights import (
    checkpoint_tensors,
    digest,
    layer_of,
    policy_digests,
    refuse_other_weights,
    tied_names,
    worker_digests,
    worker_lacks,
)
from mempo.errors import UserError
from tests.tiny import make_tokenizer, tiny_llama, tiny_model

TOKENIZER = make_tokenizer()
F32 = torch.float32


def worker_of(model: torch.nn.Module) -> Any:
    return SimpleNamespace(model_runner=SimpleNamespace(get_model=lambda: model))


def packed_linear(weight: torch.Tensor, keep: bool = False) -> Any:
    """A layer as vLLM's builds for CPUs hold it: the weight `[out, in]` is in a form of its own."""
    layer: Any = torch.nn.Module()
    layer.weight = torch.nn.Parameter(weight.clone() if keep else torch.empty(0))
    layer.input_size = weight.shape[1]
    held = weight.clone()
    layer.cpu_linear = lambda x, weight, bias: x @ held.T
    return layer


def test_order_and_padding_do_not_count() -> None:
    torch.manual_seed(0)
    q, k = torch.randn(6, 4), torch.randn(3, 4)
    both = digest(q, F32) + digest(k, F32)
    assert digest(torch.cat([q, k]), F32) % 2**64 == both % 2**64
    assert digest(q.T, F32) == digest(q, F32)
    assert digest(torch.cat([q, torch.zeros(5, 4)]), F32) == digest(q, F32)
    assert digest(torch.zeros(3), F32) == digest(torch.tensor([-0.0]), F32) == 0


def test_every_bit_counts() -> None:
    torch.manual_seed(0)
    weight = torch.randn(50, 40)
    seen = {digest(weight, F32)}
    for row in range(50):
        changed = weight.clone()
        changed[row, row % 40] = torch.nextafter(changed[row, row % 40], torch.tensor(9.0))
        seen.add(digest(changed, F32))
    assert len(seen) == 51
    assert digest(torch.tensor([1.0, 2.0]), F32) != digest(torch.tensor([0.0, 3.0]), F32)
    assert digest(-weight, F32) != digest(weight, F32)


def test_weights_are_compared_as_the_sampler_rounds_them() -> None:
    weight = torch.randn(8, 8)
    rounded = weight.to(torch.bfloat16)
    assert digest(weight, torch.bfloat16) == digest(rounded, torch.bfloat16)
    assert digest(weight, F32) != digest(rounded, F32)


def test_large_tensors_are_hashed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(9, 11)
    whole = digest(weight, F32)
    monkeypatch.setattr("mempo.engine.vllm_weights.CHUNK", 7)
    assert digest(weight, F32) % 2**64 == whole % 2**64


def test_layers_by_name() -> None:
    names = ["model.layers.3.mlp.up_proj.weight", "transformer.h.12.attn.c_attn.bias", "model.norm.weight"]
    assert [layer_of(name) for name in names] == ["3", "12", ""]


def test_joined_and_packed_layers_have_the_digests_of_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mempo.engine.vllm_weights.UNIT_ROWS", 5)
    policy = tiny_llama(TOKENIZER)
    tensors = checkpoint_tensors(policy)
    theirs: Any = torch.nn.Module()
    theirs.layers = torch.nn.ModuleList()
    for n in range(2):
        ours = {name: tensor for name, tensor in tensors.items() if f".layers.{n}." in name}
        layer: Any = torch.nn.Module()
        layer.qkv = packed_linear(torch.cat([ours[f"model.layers.{n}.self_attn.{x}_proj.weight"] for x in "qkv"]))
        used = [name for name in ours if any(f".{x}_proj" in name for x in "qkv")]
        layer.rest = torch.nn.ParameterList([tensor for name, tensor in ours.items() if name not in used])
        theirs.layers.append(layer)
    embedding = tensors["model.embed_tokens.weight"]
    theirs.embed = packed_linear(torch.cat([embedding, torch.zeros(2, embedding.shape[1])]), keep=True)
    theirs.norm = torch.nn.ParameterList([tensors["model.norm.weight"]])
    ours, found = policy_digests(tensors, F32), worker_digests(worker_of(theirs), F32)
    assert ours == found
    refuse_other_weights(ours, found)


def test_a_packed_copy_that_is_stale_is_seen() -> None:
    model: Any = torch.nn.Module()
    model.head = packed_linear(torch.randn(6, 4), keep=True)
    fresh = worker_digests(worker_of(model), F32)
    assert fresh == {"": digest(model.head.weight, F32) % 2**64}
    with torch.no_grad():
        model.head.weight.mul_(2)
    assert worker_digests(worker_of(model), F32) != {"": digest(model.head.weight, F32) % 2**64}


def test_differences_are_named() -> None:
    refuse_other_weights({"": 1, "0": 2}, {"0": 2, "": 1})
    with pytest.raises(UserError, match=r"in 2 of 3 parts \(embeddings, last norm or head, layer 1\)"):
        refuse_other_weights({"": 1, "0": 2, "1": 3}, {"": 2, "0": 2})
    with pytest.raises(UserError, match=r"in 5 of 5 parts \(layer 0, layer 1, layer 2, …\)"):
        refuse_other_weights({str(n): n for n in range(5)}, {"0": 7})


def test_what_is_tied_counts_once_and_goes_where_there_is_a_module_for_it() -> None:
    policy = tiny_llama(TOKENIZER)
    tensors = checkpoint_tensors(policy)
    assert tied_names(tensors) == ["lm_head.weight"]
    alone = {name: tensor for name, tensor in tensors.items() if name != "lm_head.weight"}
    assert policy_digests(tensors, F32) == policy_digests(alone, F32)
    assert worker_lacks(worker_of(policy.model), ["lm_head.weight"]) == []
    assert worker_lacks(worker_of(policy.model.model), ["lm_head.weight"]) == ["lm_head.weight"]
    assert tied_names(checkpoint_tensors(tiny_model("qwen2", TOKENIZER))) == []


def test_an_adapter_is_added_to_the_weights() -> None:
    plain = {name: tensor.clone() for name, tensor in checkpoint_tensors(tiny_llama(TOKENIZER)).items()}
    policy = add_lora(tiny_llama(TOKENIZER), LoraSettings(rank=2), seed=0, base_path="base")
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.01)
    tensors, merged = checkpoint_tensors(policy), merged_weights(policy)
    assert tensors.keys() == plain.keys()
    assert all(torch.equal(tensors[name], merged[name]) for name in plain)
    name = "model.layers.0.self_attn.q_proj.weight"
    assert not torch.equal(tensors[name], plain[name])


def test_the_tensors_are_those_of_the_policy() -> None:
    policy = tiny_llama(TOKENIZER)
    for name, tensor in checkpoint_tensors(policy).items():
        assert tensor.data_ptr() == policy.model.get_parameter(name).data_ptr()
        assert not tensor.requires_grad
