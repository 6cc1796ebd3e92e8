"""A policy is loaded whole or not at all: what is missing, left over or of another shape is named, by every family."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from mempo.config.engine import LoraSettings
from mempo.engine.lora import add_lora
from mempo.engine.model import ModelSettings, check_model_folder, load_policy, load_tokenizer, save_policy, save_trained
from mempo.errors import UserError
from mempo.storage.model_loading import load_whole
from tests.engine.families import FAMILIES, family_model
from tests.tiny import make_tokenizer, tiny_llama, tiny_model

TOKENIZER = make_tokenizer()
CPU = ModelSettings(device="cpu")
LAYER = "model.layers.1."


def load(folder: Path) -> Any:
    return load_policy(CPU, str(folder))


def refused(folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        load(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_policy(tiny_llama(TOKENIZER), tmp_path / "policy")
    return tmp_path / "policy"


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    file = folder / "model.safetensors"
    save_file(change(load_file(file)), file, metadata={"format": "pt"})


def reconfigure(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def shard(folder: Path) -> dict[str, str]:
    """Each layer and the rest in a file of its own."""
    whole = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    files = {name: f"model-{name.split('.')[2] if 'layers' in name else 'rest'}.safetensors" for name in whole}
    for file in set(files.values()):
        save_file({n: t for n, t in whole.items() if files[n] == file}, folder / file, metadata={"format": "pt"})
    write_index(folder, files)
    return files


def write_index(folder: Path, files: dict[str, Any]) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))


# --- tensors --------------------------------------------------------------------------------------------------------


def test_missing_tensors_are_counted_and_named(folder: Path) -> None:
    rewrite(folder, lambda whole: {name: t for name, t in whole.items() if LAYER not in name})
    said = refused(folder)
    assert "9 of 21 tensors are missing (model.layers.1.input_layernorm.weight, " in said  # the tied head counts too
    assert "and 6 more)" in said


def test_tensors_that_have_no_place_are_named(folder: Path) -> None:
    foreign = {"model.layers.2.mlp.up_proj.weight": torch.ones(2, 2), "foreign": torch.ones(1)}
    rewrite(folder, lambda whole: {**whole, **foreign})
    said = refused(folder)
    assert "2 tensors belong to no part of LlamaForCausalLM (foreign, model.layers.2.mlp.up_proj.weight)" in said


def test_a_configuration_with_fewer_layers_is_refused(folder: Path) -> None:
    reconfigure(folder, num_hidden_layers=1)
    assert "9 tensors belong to no part of LlamaForCausalLM (model.layers.1.input_layernorm.weight" in refused(folder)


def test_tensors_of_another_shape_are_named(folder: Path) -> None:
    reconfigure(folder, intermediate_size=48)
    said = refused(folder)
    assert "model.layers.0.mlp.down_proj.weight is [32, 64] and should be [32, 48] (5 more differ)" in said
    reconfigure(folder, intermediate_size=64, vocab_size=300)
    assert f"model.embed_tokens.weight is [{TOKENIZER.size}, 32] and should be [300, 32]" in refused(folder)


def test_a_configuration_of_another_family_is_refused(folder: Path, tmp_path: Path) -> None:
    save_policy(tiny_model("gpt2", TOKENIZER), tmp_path / "other")
    (folder / "config.json").write_bytes((tmp_path / "other" / "config.json").read_bytes())
    said = refused(folder)
    assert "tensors are missing" in said
    assert "belong to no part of GPT2LMHeadModel" in said
    assert "config.json (gpt2) is that of another model" in said


def test_a_tied_head_may_be_absent_and_another_may_not(folder: Path, tmp_path: Path) -> None:
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")
    load(folder)
    reconfigure(folder, tie_word_embeddings=False)
    assert "1 of 21 tensors are missing (lm_head.weight)" in refused(folder)


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in ("bert", "roberta", "xlstm")])
def test_every_family_comes_back_whole_and_not_in_part(family: str, tmp_path: Path) -> None:
    saved = family_model(family)
    saved.save_pretrained(tmp_path)
    options = {"attn_implementation": saved.config._attn_implementation, "dtype": torch.float32}
    loaded = load_whole(AutoModelForCausalLM, tmp_path, **options)
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        torch.testing.assert_close(loaded(input_ids=ids).logits, saved(input_ids=ids).logits, rtol=0, atol=1e-5)
    lost = max(name for name in load_file(tmp_path / "model.safetensors") if "embed" not in name and "head" not in name)
    rewrite(tmp_path, lambda whole: {name: t for name, t in whole.items() if name != lost})
    with pytest.raises(UserError, match=r"cannot be loaded whole: \d+ of \d+ tensors are missing"):
        load_whole(AutoModelForCausalLM, tmp_path, **options)


# --- files ----------------------------------------------------------------------------------------------------------


def test_shards_are_loaded(folder: Path) -> None:
    shard(folder)
    load(folder)


def test_weights_that_nothing_names_are_not_guessed_at(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "weights.safetensors")
    assert "holds no model.safetensors and no model.safetensors.index.json" in refused(folder)


def test_missing_and_cut_shards_are_named(folder: Path) -> None:
    shard(folder)
    held = (folder / "model-1.safetensors").read_bytes()
    (folder / "model-1.safetensors").write_bytes(held[:-8])
    assert "model-1.safetensors is damaged, or not whole" in refused(folder)
    (folder / "model-1.safetensors").write_bytes(b"")
    assert "model-1.safetensors is damaged, or not whole" in refused(folder)
    (folder / "model-1.safetensors").unlink()
    assert "lacks 1 of 3 files of weights: model-1.safetensors" in refused(folder)


def test_tensors_that_a_shard_lacks_are_named(folder: Path) -> None:
    files = shard(folder)
    write_index(folder, {**files, "model.layers.7.weight": "model-1.safetensors"})
    assert "names 1 of 21 tensors in files that lack them: model.layers.7.weight" in refused(folder)


class Trap:
    opened = False

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        return (_sprung, ())


def _sprung() -> None:
    Trap.opened = True


@pytest.mark.parametrize("name", ["weights.bin", "weights.pt", "model.safetensors.pkl", "weights"])
def test_an_index_that_points_at_a_pickle_is_refused_unopened(folder: Path, name: str) -> None:
    files = shard(folder)
    (folder / name).write_bytes(pickle.dumps({"a": Trap()}))
    write_index(folder, {**files, next(iter(files)): name})
    assert f"names the weights '{name}', which are not safetensors" in refused(folder)
    assert not Trap.opened


@pytest.mark.parametrize("name", ["../other/model.safetensors", "/etc/model.safetensors", "a/../../model.safetensors"])
def test_an_index_that_leads_out_of_the_folder_is_refused(folder: Path, name: str) -> None:
    files = shard(folder)
    write_index(folder, {**files, next(iter(files)): name})
    assert f"names the weights {name!r}, which lie outside the folder" in refused(folder)


def test_a_configuration_that_names_other_weights_is_held_to_the_same(folder: Path) -> None:
    reconfigure(folder, transformers_weights="../model.safetensors")
    assert "which lie outside the folder" in refused(folder)
    reconfigure(folder, transformers_weights="pytorch_model.bin")
    assert "which are not safetensors" in refused(folder)
    reconfigure(folder, transformers_weights="other.safetensors")
    assert "names the weights other.safetensors, which is not there" in refused(folder)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": {"a": 3}}', '{"weight_map": []}', '{"weight_map": {'])
def test_a_damaged_index_is_one_line(folder: Path, text: str) -> None:
    shard(folder)
    (folder / "model.safetensors.index.json").write_text(text)
    assert "model.safetensors.index.json is damaged" in refused(folder)
    with pytest.raises(UserError, match="is damaged"):
        check_model_folder(str(folder))


# --- descriptions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "config.json is damaged"),
        ("[]", "config.json is damaged (it holds list, where an object is expected)"),
        ('{"model_type": "llama"', "config.json is damaged"),
        ("{}", "config.json names no model_type"),
        ('{"model_type": 3}', "config.json names no model_type"),
        ('{"model_type": "no_such_family"}', "cannot be loaded: "),
    ],
)
def test_a_damaged_configuration_is_one_line(folder: Path, text: str, said: str) -> None:
    (folder / "config.json").write_text(text)
    assert said in refused(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_size": "x"},
        {"hidden_size": None},
        {"hidden_size": 0},
        {"num_hidden_layers": -1},
        {"num_attention_heads": 0},
        {"num_attention_heads": 5},
        {"vocab_size": "many"},
        {"rope_parameters": 3},
        {"rope_parameters": {"rope_type": "no such", "rope_theta": 1.0}},
        {"hidden_act": "no such"},
        {"rms_norm_eps": "small"},
        {"max_position_embeddings": "long"},
    ],
)
def test_a_wrong_value_in_a_configuration_is_one_line(folder: Path, changes: dict[str, Any]) -> None:
    reconfigure(folder, **changes)
    refused(folder)


@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("text", ["", "[]", "{}", "3", '{"model": {', "\udcff"])
def test_a_damaged_tokenizer_is_one_line(folder: Path, file: str, text: str) -> None:
    (folder / file).write_bytes(text.encode("utf-8", "surrogateescape"))
    if (file, text) == ("tokenizer_config.json", "{}"):
        return  # what it would say is left to defaults
    with pytest.raises(UserError) as caught:
        load_tokenizer(str(folder))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", '{"eos_token_id": "x"}', '{"eos_token_id": [1, null]}', '{"eos_token_id"'])
def test_a_damaged_generation_configuration_is_one_line(folder: Path, text: str) -> None:
    (folder / "generation_config.json").write_text(text)
    with pytest.raises(UserError, match=r"generation_config\.json is damaged"):
        load_tokenizer(str(folder))


# --- adapters -------------------------------------------------------------------------------------------------------


def test_an_adapter_is_loaded_whole_or_not_at_all(folder: Path) -> None:
    adapter = folder.parent / "adapter"
    save_trained(add_lora(load(folder), LoraSettings(rank=2), 0, "../policy"), adapter)
    load(adapter)
    file = adapter / "adapter_model.safetensors"
    whole = load_file(file)
    save_file({**whole, "foreign": torch.ones(1)}, file)
    assert "1 tensors belong to no part of the adapter (foreign)" in refused(adapter)
    save_file(dict(list(whole.items())[3:]), file)
    assert "3 of 28 tensors are missing" in refused(adapter)
    save_file(whole, file)
    rewrite(folder, lambda held: {name: t for name, t in held.items() if LAYER not in name})
    assert "9 of 21 tensors are missing" in refused(adapter)
    (adapter / "adapter_config.json").write_text("[]")
    assert "the adapter in" in refused(adapter)
    file.unlink()
    (adapter / "adapter_config.json").write_text("{}")
    assert "the adapter in" in refused(adapter)
