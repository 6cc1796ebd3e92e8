"""Checkpoints that verl's own manager wrote, with and without safetensors, with and without an adapter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console

from mempo.cluster.convert import convert
from mempo.config.engine import ModelSettings
from mempo.engine.model import load_policy, save_policy
from tests.cluster.verl_tree import TOKENIZER, logits
from tests.tiny import tiny_llama

SAVER = Path(__file__).with_name("save_checkpoint.py")
CPU = ModelSettings(device="cpu")
POLICY = tiny_llama(TOKENIZER, tie_word_embeddings=False)


def saved(tmp_path: Path, ranks: int, contents: str, lora_rank: int = 0) -> Path:
    save_policy(POLICY, tmp_path / "model")
    out = tmp_path / "global_step_3"
    fixed = [str(tmp_path / "model"), str(out), str(tmp_path / "rendezvous"), contents, str(lora_rank)]
    command = [sys.executable, str(SAVER)]
    running = [subprocess.Popen([*command, str(rank), str(ranks), *fixed]) for rank in range(ranks)]
    assert [process.wait(timeout=1800) for process in running] == [0] * ranks
    return out


def converted(checkpoint: Path, out: Path, own_run: bool) -> torch.Tensor:
    convert(checkpoint, out, None, own_run, Console(quiet=True))
    return logits(load_policy(CPU, str(out)))


def rounded() -> torch.Tensor:
    """The policy with its weights in bfloat16, as verl's merger keeps them, computed in float32."""
    policy = tiny_llama(TOKENIZER, tie_word_embeddings=False)
    for parameter in policy.model.parameters():
        parameter.data = parameter.data.bfloat16().float()
    return logits(policy)


@pytest.mark.parametrize("ranks", [1, 2])
def test_shards_are_merged(tmp_path: Path, ranks: int) -> None:
    checkpoint = saved(tmp_path, ranks, "model")
    assert len(list((checkpoint / "actor").glob("model_world_size_*.pt"))) == ranks
    torch.testing.assert_close(converted(checkpoint, tmp_path / "out", True), rounded(), rtol=0, atol=1e-6)


def test_safetensors_are_taken_without_loading_shards(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path, 2, "model,hf_model")
    for shard in (checkpoint / "actor").glob("*.pt"):
        shard.write_bytes(b"would not load")
    torch.testing.assert_close(converted(checkpoint, tmp_path / "out", False), logits(POLICY), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("contents", "tolerance"), [("model,hf_model", 1e-5), ("model", 0.1)])
def test_adapters_are_added_to_the_weights(tmp_path: Path, contents: str, tolerance: float) -> None:
    checkpoint = saved(tmp_path, 2, contents, lora_rank=4)
    wanted = torch.load(checkpoint / "logits.pt", weights_only=True)
    found = converted(checkpoint, tmp_path / "out", True)
    torch.testing.assert_close(found, wanted, rtol=0, atol=tolerance * wanted.abs().max().item())
    assert (wanted - logits(POLICY)).abs().max() > wanted.abs().max() / 2
