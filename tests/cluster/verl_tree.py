"""Checkpoint folders in the layout that verl's FSDP workers write."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from mempo.config.engine import LoraSettings
from mempo.engine.lora import add_lora
from mempo.engine.model import save_policy
from mempo.engine.policy import Policy
from mempo.rollout.tokenizer import Tokenizer
from tests.tiny import make_tokenizer, tiny_llama

TOKENIZER = make_tokenizer()
IDS = torch.tensor([[5, 6, 7, 8, 9, 10]])
RANK, ALPHA = 4, 8


def logits(policy: Policy) -> torch.Tensor:
    with torch.no_grad():
        return policy.model(input_ids=IDS).logits


def step_folder(checkpoints: Path, policy: Policy, step: int = 3, weights: bool = True) -> Path:
    """`global_step_N` with the policy under actor/huggingface; without `weights` as verl leaves it by default."""
    folder = checkpoints / f"global_step_{step}"
    huggingface = folder / "actor" / "huggingface"
    save_policy(policy, huggingface)
    if not weights:
        (huggingface / "model.safetensors").unlink()
    (folder / "actor" / "fsdp_config.json").write_text('{"FSDP_version": 2, "world_size": 1}')
    torch.save({"not": "ours to read"}, folder / "data.pt")
    (checkpoints / "latest_checkpointed_iteration.txt").write_text(str(step))
    return folder


def adapted_policy(tokenizer: Tokenizer = TOKENIZER, tied: bool = True) -> Policy:
    """A policy with an adapter that changes it."""
    policy = add_lora(
        tiny_llama(tokenizer, tie_word_embeddings=tied), LoraSettings(rank=RANK, alpha=ALPHA), seed=0, base_path="base"
    )
    generator = torch.Generator().manual_seed(1)
    for name, parameter in policy.model.named_parameters():
        if ".lora_B." in name:
            parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator)
    return policy


def adapted_step_folder(checkpoints: Path, policy: Policy) -> Path:
    """What verl writes with LoRA: the safetensors have peft's names, the tied head twice."""
    assert policy.adapter is not None
    folder = step_folder(checkpoints, policy.adapter.base)
    names = policy.model.state_dict()
    tensors = {f"base_model.model.{name}": tensor.clone().contiguous() for name, tensor in names.items()}
    save_file(tensors, folder / "actor" / "huggingface" / "model.safetensors", metadata={"format": "pt"})
    meta = {"r": RANK, "lora_alpha": ALPHA, "task_type": "CAUSAL_LM"}
    (folder / "actor" / "lora_train_meta.json").write_text(json.dumps(meta))
    return folder
