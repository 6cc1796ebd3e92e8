"""Loading and saving the policy: any Hugging Face causal language model, from safetensors only."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from mempo.errors import UserError
from mempo.settings import Settings
from mempo.tokens import Codec

transformers_logging.disable_progress_bar()  # checkpoints are written while our own bar is shown


class ModelSettings(Settings):
    """Which model, where and how."""

    path: str | None = None
    """A folder (or hub name) with config.json, tokenizer.json and *.safetensors."""
    device: str = "auto"
    """`auto` takes CUDA where there is one."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    threads: int = Field(default=0, ge=0, le=1024)
    """CPU threads of torch; 0 leaves its own choice."""


@dataclass
class Policy:
    """A model with its tokenizer. `plain_head`: logits are the output embedding of the last hidden state, no more."""

    model: PreTrainedModel
    codec: Codec
    plain_head: bool

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def window(self) -> int | None:
        """The most tokens the model can see, where its configuration says so."""
        return getattr(self.model.config, "max_position_embeddings", None)


def pick_device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(f"model.device is {name!r}, but torch sees no CUDA device; use cpu or auto")
    try:
        return torch.device(name)
    except RuntimeError:
        raise UserError(f"model.device {name!r} is no device that torch knows; use cpu, cuda or auto") from None


def check_model_folder(path: str) -> None:
    """Refuse a folder that cannot be loaded, before anything heavy happens. Hub names are left to the hub client.

    Raises:
        UserError: missing folder, no config, or weights in another format than safetensors.
    """
    folder = Path(path)
    if not folder.exists():
        if path.count("/") == 1 and not path.startswith((".", "/", "~")):
            return
        raise UserError(f"no model folder {path!r}; give a folder with config.json and *.safetensors, or a hub name")
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder} holds no config.json, so it is not a model folder")
    if not any(folder.glob("*.safetensors")):
        others = sorted(p.name for p in folder.iterdir() if p.suffix in {".bin", ".pt", ".pth", ".ckpt", ".gguf"})
        found = f" (found {', '.join(others)})" if others else ""
        raise UserError(
            f"{folder} holds no *.safetensors{found}; weights load from safetensors only: convert them first"
        )


def load_codec(path: str) -> Codec:
    """The tokenizer of a model folder or a hub name."""
    check_model_folder(path)
    try:
        return Codec(AutoTokenizer.from_pretrained(path, trust_remote_code=False), _generation_eos(path))
    except (OSError, ValueError) as error:
        raise UserError(f"the tokenizer of {path!r} cannot be loaded: {str(error).splitlines()[0]}") from error


def _generation_eos(path: str) -> list[int]:
    """End-of-sequence ids of generation_config.json: chat models often name several."""
    try:
        found = GenerationConfig.from_pretrained(path).eos_token_id
    except OSError:  # most folders have none
        return []
    return [found] if isinstance(found, int) else list(found or [])


def load_policy(settings: ModelSettings, path: str | None = None, codec: Codec | None = None) -> Policy:
    """Load the model of `path` (default `settings.path`) in evaluation mode.

    Raises:
        UserError: nothing to load, or a folder that cannot be loaded.
    """
    path = path or settings.path
    if not path:
        raise UserError("no model is named; set model.path")
    check_model_folder(path)
    if settings.threads:
        torch.set_num_threads(settings.threads)
    device = pick_device(settings.device)
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            path,
            dtype=getattr(torch, settings.dtype),
            attn_implementation=settings.attention,
            use_safetensors=True,
            trust_remote_code=False,
        )
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(f"the model of {path!r} cannot be loaded: {str(error).splitlines()[0]}") from error
    return wrap_policy(model.to(device), codec or load_codec(path))


def wrap_policy(model: Any, codec: Codec) -> Policy:
    """A policy of a model already made; checks once whether its head is a plain matrix."""
    model.eval()
    vocabulary = model.get_output_embeddings().weight.shape[0]
    if codec.size > vocabulary:
        raise UserError(
            f"the tokenizer has {codec.size} tokens but the model only {vocabulary} output rows; "
            "resize the model's embeddings or take its own tokenizer"
        )
    return Policy(model, codec, _has_plain_head(model))


def save_policy(policy: Policy, folder: Path) -> None:
    """Write a Hugging Face folder (safetensors, configuration, tokenizer)."""
    policy.model.save_pretrained(folder, safe_serialization=True)
    policy.codec.tokenizer.save_pretrained(folder)


def model_window(path: str) -> int | None:
    """The context window of a model folder, read from its configuration alone."""
    config = Path(path) / "config.json"
    if config.is_file():
        return json.loads(config.read_text("utf-8")).get("max_position_embeddings")
    return getattr(AutoConfig.from_pretrained(path), "max_position_embeddings", None)


def backbone_hidden(model: PreTrainedModel, input_ids: torch.Tensor) -> torch.Tensor:
    """Last hidden states `[rows, tokens, width]` of right-padded rows.

    Attention is causal and padding stands on the right, so no real token sees any: no mask is needed, and without one
    the fast attention kernels apply.
    """
    return model.base_model(input_ids=input_ids, use_cache=False).last_hidden_state


@torch.no_grad()
def _has_plain_head(model: PreTrainedModel) -> bool:
    """Some families scale or cap logits behind the head. They take the slow road: all logits, then a choice.

    A cap does nothing to small logits, such as those of a model that was just made, so the check makes them large.
    """
    ids = torch.arange(4, device=model.device)[None] % model.config.get_text_config().vocab_size
    head: Any = model.get_output_embeddings()
    hidden = backbone_hidden(model, ids)
    scale = 1000 / head(hidden).float().abs().max().clamp(min=1e-6)
    hook = head.register_forward_hook(lambda module, inputs, output: output * scale.to(output.dtype))
    try:
        whole, ours = model(input_ids=ids, use_cache=False).logits.float(), head(hidden).float()
    finally:
        hook.remove()
    return whole.shape == ours.shape and torch.allclose(whole, ours, rtol=1e-3, atol=1e-3)


def logits_at(policy: Policy, input_ids: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Logits `[picked, vocabulary]` in float32 at `(rows, positions)` of right-padded `input_ids` `[rows, tokens]`."""
    if not policy.plain_head:
        return policy.model(input_ids=input_ids, use_cache=False).logits[rows, positions].float()
    head: Any = policy.model.get_output_embeddings()
    return head(backbone_hidden(policy.model, input_ids)[rows, positions]).float()
