"""Whole runs that train adapters: SFT, RL from its end, an exact resume, and folders that load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import mempo.train.rl
import mempo.train.sft
from mempo.config.engine import ModelSettings
from mempo.engine.model import load_policy, save_policy
from mempo.errors import ConfigError, UserError
from mempo.run.evaluate import evaluate_model, final_model
from tests.engine.test_update import assert_same_weights as assert_same_policy
from tests.tiny import make_tokenizer, tiny_llama
from tests.train.small import assert_same_weights, metrics, quiet, run, small
from tests.train.test_resume import Killed, kill_after

pytestmark = pytest.mark.slow

CPU = ModelSettings(device="cpu")


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    model = tmp_path_factory.mktemp("models") / "base"
    save_policy(tiny_llama(make_tokenizer(), max_position_embeddings=2048), model)
    return [
        "toy=null",
        f"model.path={model}",
        "model.lora={rank: 4, alpha: 8}",
        "model.gradient_checkpointing=true",
        "prompt.template=plain",
        "limits.max_context_tokens=512",
        "limits.max_turns=3",
        "limits.max_turn_tokens=80",
        "data.objectives=[1]",
        "rl.questions_per_step=1",
        "sft.steps=4",
        "sft.save_every=2",
        "sft.batch_rows=4",
        "sft.optim.lr=1e-2",
        "rl.steps=4",
        "rl.save_every=2",
        "rl.optim.lr=1e-2",
        "rl.loss={kl: k3, kl_coef: 0.01}",
        "memory.baseline=full",
        "memory.full_policy=reference",
        "rl.probe_check_questions=0",
    ]


@pytest.fixture(scope="module")
def whole(settings: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("runs") / "whole", *settings)


def test_the_divergence_begins_at_zero_and_is_from_the_end_of_sft(whole: Path) -> None:
    steps = metrics(whole, "rl")
    assert [line["update/optimizer_steps"] for line in steps] == [1] * 4
    assert steps[0]["update/k3"] == 0
    assert steps[-1]["update/k3"] > 0
    # `start/` is the base of the adapter of RL: the model that SFT ended with.
    sft = load_policy(CPU, str(whole / "checkpoints" / "sft-4"))
    start = load_policy(CPU, str(whole / "start"))
    ids = torch.arange(5, 30)[None]
    with torch.no_grad():
        torch.testing.assert_close(
            sft.model(input_ids=ids).logits, start.model(input_ids=ids).logits, rtol=0, atol=1e-4
        )


def test_checkpoints_are_adapters_and_the_end_is_a_model(whole: Path, settings: list[str]) -> None:
    last = load_policy(CPU, str(whole / "checkpoints" / "rl-4"))
    assert last.adapter is not None
    assert_same_policy(last.adapter.base, load_policy(CPU, str(whole / "start")), atol=0)
    final: Any = AutoModelForCausalLM.from_pretrained(final_model(whole))
    ids = torch.arange(5, 30)[None]
    with torch.no_grad():
        torch.testing.assert_close(final(input_ids=ids).logits, last.model(input_ids=ids).logits, rtol=0, atol=1e-4)
    adapter = load_file(whole / "checkpoints" / "rl-4" / "adapter_model.safetensors")
    assert any(bool(t.any()) for name, t in adapter.items() if "lora_B" in name)
    for folder in (final_model(whole), whole / "checkpoints" / "rl-2"):
        measures = evaluate_model(small(whole.parent / "unused", *settings), str(folder), None, quiet())
        assert sorted(measures) == [1]


@pytest.mark.parametrize(("stage", "step"), [("sft", 4), ("rl", 2)])
def test_a_killed_run_goes_on_exactly(
    stage: str, step: int, whole: Path, settings: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "broken"
    with monkeypatch.context() as patch:
        kill_after(patch, getattr(mempo.train, stage), step)
        with pytest.raises(Killed):
            run(folder, *settings)
    run(folder, *settings, resume=True)
    assert_same_weights(folder / "final", whole / "final")
    for name in ("sft", "rl"):
        assert metrics(folder, name) == metrics(whole, name)


def test_what_cannot_be_is_refused_before_anything_is_loaded(whole: Path, settings: list[str], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"rl-4 is an adapter, not a model; give a model with the adapter merged"):
        run(tmp_path / "run", *settings, f"model.path={whole / 'checkpoints' / 'rl-4'}")
    with pytest.raises(ConfigError, match="a toy policy learns from scratch"):
        small(tmp_path / "run", "model.lora={}")
    assert not (tmp_path / "run").exists()
