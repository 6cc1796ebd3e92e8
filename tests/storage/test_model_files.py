"""Paths and hub names, and what a model's folder says of itself, before anything is loaded."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants
from transformers import PreTrainedTokenizerFast

from mempo.cluster.model_shape import ModelShape
from mempo.config.server import ServerSettings
from mempo.engine.model import ModelSettings, check_model_folder, load_policy, load_tokenizer, model_window, save_policy
from mempo.engine.server.connect import open_tokenizer
from mempo.errors import UserError
from mempo.retrieval.encoder_folder import encoder_folder
from mempo.storage.model_files import context_window, may_be_hub_name, model_folder, reply_ends
from tests.engine.families import family_config
from tests.tiny import chat_tokenizer, make_tokenizer, tiny_llama


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No network is asked, and the hub's cache is empty."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- paths and hub names --------------------------------------------------------------------------------------------

PATHS = ["./x", "../x", "/abs/x", "~/x", "models/x/", "a/b/c", "models/", "", " ", "a b/c", "x\\y", "a//b", "-x/y"]


@pytest.mark.parametrize("path", PATHS)
def test_what_looks_like_a_path_and_is_not_there_is_said_at_once(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", None)  # whoever asks the hub fails
    for load in (load_tokenizer, model_window, check_model_folder, encoder_folder):
        with pytest.raises(UserError, match=r"no (model|encoder) folder"):
            load(path)
    with pytest.raises(UserError, match="no model folder" if path else r"set model\.path"):
        load_policy(ModelSettings(), path)


def test_a_name_inside_a_folder_that_is_here_is_a_path(offline: Path) -> None:
    assert may_be_hub_name("models/policy")
    (offline / "models").mkdir()
    assert not may_be_hub_name("models/policy")
    with pytest.raises(UserError, match="no model folder 'models/policy'"):
        load_tokenizer("models/policy")


@pytest.mark.parametrize("name", ["gpt2", "Qwen/Qwen3-0.6B", "org/name.v2"])
def test_what_may_be_a_hub_name_is_asked_for_once_and_said_in_one_line(name: str, offline: Path) -> None:
    check_model_folder(name)  # asks nobody
    began = time.monotonic()
    for what, load in (("model", load_tokenizer), ("model", model_window), ("encoder", encoder_folder)):
        with pytest.raises(UserError) as caught:
            load(name)
        assert str(caught.value) == (
            f"{what} {name!r} is not a folder here and not in the hub's cache ({offline / 'cache'}), and "
            "HF_HUB_OFFLINE is set; give a folder, or fetch it once while online"
        )
    with pytest.raises(UserError, match=rf"server\.tokenizer '{name}' cannot be loaded .* HF_HUB_OFFLINE is set"):
        open_tokenizer(ServerSettings(url="http://localhost:1", tokenizer=name))
    assert time.monotonic() - began < 10


def test_a_failed_fetch_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(name: str, **_: Any) -> str:
        raise OSError("Name or service not known\nPlease check your connection.")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fails)
    with pytest.raises(UserError) as caught:
        load_tokenizer("some-org/some-model")
    assert str(caught.value) == (
        "model 'some-org/some-model' is not a folder here and cannot be fetched from the hub "
        "(Name or service not known)"
    )


def test_only_the_weights_that_the_index_names_are_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def fetch(name: str, allow_patterns: list[str]) -> str:
        asked.append(allow_patterns)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "m-1.safetensors"}}))
    assert model_folder("org/sharded") == tmp_path
    assert asked[-1][-1] == "m-1.safetensors"
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "pytorch_model.bin"}}))
    asked.clear()
    with pytest.raises(UserError, match=r"'pytorch_model\.bin', which are not safetensors"):
        model_folder("org/pickled")
    assert not any("pytorch_model.bin" in patterns for patterns in asked)


# --- windows --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "window"),
    [
        ({"max_position_embeddings": 1024}, 1024),
        ({"n_positions": 512}, 512),
        ({"max_seq_len": 2048}, 2048),
        ({"text_config": {"max_position_embeddings": 4096}}, 4096),
        ({"vision_config": {"max_position_embeddings": 77}, "text_config": {"max_position_embeddings": 4096}}, 4096),
        ({}, None),
        ({"max_position_embeddings": None, "text_config": None}, None),
        ({"max_position_embeddings": "long"}, None),
        (
            {
                "max_position_embeddings": 32768,
                "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
            },
            131072,
        ),
        (
            {
                "max_position_embeddings": 131072,
                "rope_parameters": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096},
            },
            131072,
        ),
        # What other kinds say is in the window already, or was never trained.
        ({"max_position_embeddings": 16384, "rope_scaling": {"type": "linear", "factor": 4.0}}, 16384),
    ],
)
def test_the_window_is_that_of_the_text_model(config: dict[str, Any], window: int | None, tmp_path: Path) -> None:
    assert context_window(config) == window
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "any", **config}))
    assert model_window(str(tmp_path)) == window


@pytest.mark.parametrize("family", ["llama", "gpt2", "mpt", "gemma3", "qwen3_5"])
def test_the_window_in_the_file_is_that_of_the_configuration_loaded(family: str, tmp_path: Path) -> None:
    config = family_config(family)
    config.save_pretrained(tmp_path)
    assert model_window(str(tmp_path)) == context_window(config) == 256
    found = ModelShape.of(json.loads((tmp_path / "config.json").read_text()))
    assert found == ModelShape.of(config)
    assert (found.heads, found.window_tokens) == (4, 256)


# --- ends of sequence -----------------------------------------------------------------------------------------------


def test_all_ends_of_a_reply_are_found(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 8]}')
    assert reply_ends(tmp_path, {7}) == [7, 8]
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 7}')
    assert reply_ends(tmp_path, ()) == [7]
    (tmp_path / "generation_config.json").write_text('{"temperature": 1.0}')
    assert reply_ends(tmp_path, ()) == []
    (tmp_path / "generation_config.json").unlink()
    assert reply_ends(tmp_path, ()) == []
    # Of config.json, whose values are often those of its class, only what the tokenizer has as a token of its own.
    (tmp_path / "config.json").write_text('{"eos_token_id": 2, "text_config": {"eos_token_id": [2, 9]}}')
    assert reply_ends(tmp_path, {9, 10}) == [9]


def test_a_policy_whose_generation_configuration_names_two_ends_with_either(tmp_path: Path) -> None:
    tokenizer = chat_tokenizer()
    second = tokenizer.encode_trusted("<|im_start|>")[0]
    save_policy(tiny_llama(tokenizer), tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [tokenizer.eos_id, second]}))
    for loaded in (
        load_tokenizer(str(tmp_path)),
        load_policy(ModelSettings(device="cpu"), str(tmp_path)).tokenizer,
        open_tokenizer(ServerSettings(url="http://localhost:1", tokenizer=str(tmp_path))),
    ):
        assert loaded.eos_ids == {tokenizer.eos_id, second}


def test_a_tokenizer_alone_needs_no_configuration(tmp_path: Path) -> None:
    tokenizer: PreTrainedTokenizerFast = make_tokenizer().hf
    tokenizer.save_pretrained(tmp_path)
    assert (
        open_tokenizer(ServerSettings(url="http://localhost:1", tokenizer=str(tmp_path))).eos_id
        == make_tokenizer().eos_id
    )
