"""Loading and saving policies, and which of them have a plain head."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mempo.config.engine import ModelSettings
from mempo.engine.model import (
    check_model_folder,
    load_policy,
    load_tokenizer,
    model_window,
    pick_device,
    save_policy,
    wrap_policy,
)
from mempo.errors import UserError
from tests.tiny import make_tokenizer, tiny_llama, tiny_model

TOKENIZER = make_tokenizer()
FAMILIES = ("llama", "qwen2", "gpt_neox", "gpt2", "gemma2")


@pytest.mark.parametrize("family", FAMILIES)
def test_only_a_head_that_changes_its_logits_takes_the_slow_road(family: str) -> None:
    assert tiny_model(family, TOKENIZER).plain_head == (family != "gemma2")


def test_a_cap_is_found_while_logits_are_still_small() -> None:
    # A model just made has logits far below the cap, where the cap is almost the identity.
    fresh = tiny_model("gemma2", TOKENIZER, initializer_range=0.002, final_logit_softcapping=30.0)
    assert not fresh.plain_head
    uncapped = tiny_model("gemma2", TOKENIZER, final_logit_softcapping=None)
    assert uncapped.plain_head


def test_the_check_leaves_the_model_as_it_was() -> None:
    policy = tiny_llama(TOKENIZER)
    ids = torch.tensor([[5, 6, 7]])
    before = policy.model(input_ids=ids).logits
    again = wrap_policy(policy.model, TOKENIZER)
    torch.testing.assert_close(again.model(input_ids=ids).logits, before, rtol=0, atol=0)


def test_a_policy_survives_saving_and_loading(tmp_path: Path) -> None:
    policy = tiny_llama(TOKENIZER)
    save_policy(policy, tmp_path / "m")
    assert list((tmp_path / "m").glob("*.safetensors"))
    loaded = load_policy(ModelSettings(path=str(tmp_path / "m"), device="cpu"))
    for name, value in policy.model.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], value), name
    text = "<mem>Zürich 東京</mem><answer>Paris</answer>"
    assert loaded.tokenizer.encode_trusted(text) == TOKENIZER.encode_trusted(text)
    assert loaded.tokenizer.eos_id == TOKENIZER.eos_id
    assert loaded.window == model_window(str(tmp_path / "m")) == 1024
    assert not loaded.model.training, "no dropout while sampling or scoring"


def test_tags_added_to_the_tokenizer_survive(tmp_path: Path) -> None:
    tokenizer = make_tokenizer("byte_bpe", "added")
    save_policy(tiny_llama(tokenizer), tmp_path / "m")
    assert load_tokenizer(str(tmp_path / "m")).encode_trusted("<mem>x</mem>") == tokenizer.encode_trusted(
        "<mem>x</mem>"
    )


def test_dtype_is_a_setting(tmp_path: Path) -> None:
    save_policy(tiny_llama(TOKENIZER), tmp_path / "m")
    settings = ModelSettings(path=str(tmp_path / "m"), device="cpu", dtype="bfloat16")
    assert load_policy(settings).model.dtype == torch.bfloat16


def test_a_tokenizer_larger_than_the_model_is_refused() -> None:
    with pytest.raises(
        UserError, match=f"the tokenizer has {TOKENIZER.size} tokens but the model only 300 output rows"
    ):
        tiny_llama(TOKENIZER, vocab_size=300)


def test_folders_that_cannot_be_loaded_are_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no model folder '/nowhere/at/all'"):
        check_model_folder("/nowhere/at/all")
    with pytest.raises(UserError, match=r"holds no config\.json"):
        check_model_folder(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(UserError, match=r"holds no \*\.safetensors \(found pytorch_model\.bin\)"):
        check_model_folder(str(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(UserError, match=r"model\.safetensors is damaged, or not whole [^\n]+$"):
        load_policy(ModelSettings(path=str(tmp_path), device="cpu"), tokenizer=TOKENIZER)
    with pytest.raises(UserError, match=r"set model\.path"):
        load_policy(ModelSettings())


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device("auto") == torch.device("cpu")
    with pytest.raises(UserError, match="torch sees no CUDA device; use cpu or auto"):
        pick_device("cuda:1")
