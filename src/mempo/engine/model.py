"""Loading and saving the policy: a Hugging Face causal language model, from safetensors only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from mempo.config.engine import ModelSettings
from mempo.engine.cache_check import cache_use
from mempo.engine.checkpointing import checkpointable_layers
from mempo.engine.logprobs import logprobs_of_logits, selected_logprobs
from mempo.engine.lora import is_adapter_folder, load_adapter, merged_weights, save_adapter
from mempo.engine.policy import Policy
from mempo.engine.training_cache import backbone_hidden, hidden_behind
from mempo.errors import UserError
from mempo.rollout.tokenizer import Tokenizer
from mempo.storage.model_files import (
    check_weights,
    context_window,
    model_folder,
    read_config,
    refuse_missing,
    said,
)
from mempo.storage.model_loading import folder_tokenizer, load_whole

transformers_logging.disable_progress_bar()  # checkpoints are written while our own bar is shown


def pick_device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(f"model.device is {name!r}, but torch sees no CUDA device; use cpu or auto")
    try:
        return torch.device(name)
    except RuntimeError:
        raise UserError(f"model.device {name!r} is not a device that torch knows; use cpu, cuda or auto") from None


def check_model_folder(path: str) -> None:
    """Refuse a folder that cannot be loaded, before anything heavy happens. What may be a hub name is left alone.

    Raises:
        UserError: missing folder, damaged configuration, weights that are not whole or no safetensors.
    """
    refuse_missing(path)
    folder = Path(path)
    if folder.exists():
        read_config(folder)
        if not is_adapter_folder(path):
            check_weights(folder)


def load_tokenizer(path: str) -> Tokenizer:
    """The tokenizer of a model folder or a hub name, with all ids that end a reply.

    Raises:
        UserError: it is not there, or damaged.
    """
    check_model_folder(path)
    return folder_tokenizer(model_folder(path, weights=False))


def load_policy(settings: ModelSettings, path: str | None = None, tokenizer: Tokenizer | None = None) -> Policy:
    """Load the model of `path` (default `settings.path`) in evaluation mode; a folder that holds an adapter is loaded
    onto the model that it names.

    Raises:
        UserError: nothing to load, or a folder that cannot be loaded.
    """
    path = path or settings.path
    if not path:
        raise UserError("no model is named; set model.path")
    check_model_folder(path)
    if is_adapter_folder(path):
        return load_adapter(lambda base: load_policy(settings, base, tokenizer or load_tokenizer(path)), Path(path))
    if settings.threads:
        torch.set_num_threads(settings.threads)
    device = pick_device(settings.device)
    model = load_whole(
        AutoModelForCausalLM,
        model_folder(path),
        dtype=getattr(torch, settings.dtype),
        attn_implementation=settings.attention,
    )
    try:
        policy = wrap_policy(model.to(device), tokenizer or load_tokenizer(path))
    except UserError:
        raise
    except Exception as error:  # a configuration that fits the weights and is wrong all the same
        raise UserError(f"the model in {path} is loaded and cannot be run: {said(error)}") from error
    return set_update_mode(policy, settings)


def set_update_mode(policy: Policy, settings: ModelSettings) -> Policy:
    """The same policy, its updates in the precision and with the checkpointing of `settings`.

    Raises:
        UserError: a model whose layers cannot be checkpointed.
    """
    if settings.gradient_checkpointing:
        checkpointable_layers(policy.model)
    policy.checkpointing = settings.gradient_checkpointing
    policy.autocast = None if settings.autocast == "none" else getattr(torch, settings.autocast)
    return policy


def wrap_policy(model: Any, tokenizer: Tokenizer) -> Policy:
    """A policy of a model already made; tries once whether its head is a plain matrix and what its cache is good for.

    Raises:
        UserError: the tokenizer does not fit, or token by token the model computes something else than in whole passes.
    """
    model.eval()
    vocabulary = model.get_output_embeddings().weight.shape[0]
    if tokenizer.size > vocabulary:
        raise UserError(
            f"the tokenizer has {tokenizer.size} tokens but the model only {vocabulary} output rows; "
            "resize the model's embeddings or take its own tokenizer"
        )
    plain_head = _has_plain_head(model)
    cache_use(model, plain_head)  # refuses what it must
    return Policy(model, tokenizer, plain_head)


def save_policy(policy: Policy, folder: Path) -> None:
    """Write a Hugging Face folder (safetensors, configuration, tokenizer) that stands alone: an adapter is added to the
    weights."""
    if policy.adapter is None:
        policy.model.save_pretrained(folder)
    else:
        plain = policy.adapter.base.model  # its modules have the names of a model without adapters
        plain.save_pretrained(folder, state_dict=merged_weights(policy))
    policy.tokenizer.hf.save_pretrained(folder)


def save_trained(policy: Policy, folder: Path) -> None:
    """Write what `load_policy` needs to go on training: all weights, or the adapter and the name of its base."""
    if policy.adapter is None:
        save_policy(policy, folder)
    else:
        save_adapter(policy, folder)
        policy.tokenizer.hf.save_pretrained(folder)


def model_window(path: str) -> int | None:
    """The context window of a model folder or a hub name, read from its configuration alone."""
    return context_window(read_config(model_folder(path, weights=False)))


@torch.no_grad()
def _has_plain_head(model: PreTrainedModel) -> bool:
    """Some families scale or cap logits behind the head. They compute all logits, and then choose, which is slower.

    A cap does nothing to small logits, such as those of a model that was just made, so the check makes them large.
    """
    ids = torch.arange(4, device=model.device)[None] % model.config.get_text_config().vocab_size
    if model.base_model is model:  # no backbone of its own
        return False
    head: Any = model.get_output_embeddings()
    hidden = backbone_hidden(model, ids)
    scale = 1000 / head(hidden).float().abs().max().clamp(min=1e-6)
    hook = head.register_forward_hook(lambda module, inputs, output: output * scale.to(output.dtype))
    try:
        whole = model(input_ids=ids, use_cache=False).logits.float()
    finally:
        hook.remove()
    ours = torch.nn.functional.linear(hidden, head.weight, head.bias).float() * scale
    return whole.shape == ours.shape and torch.allclose(whole, ours, rtol=1e-3, atol=1e-3)


def logprobs_at(
    policy: Policy,
    input_ids: torch.Tensor,
    rows: torch.Tensor,
    positions: torch.Tensor,
    targets: torch.Tensor,
    temperature: torch.Tensor,
    with_entropy: bool = False,
    prefix_ids: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-probs `[picked]` of `targets` as read at `(rows, positions)` of right-padded `input_ids` `[rows, tokens]`, at
    `temperature` `[picked]`, and the entropies `[picked]` when asked for; float32.

    Logits are held for a chunk of the picked positions only, in the backward pass too. A policy without a plain head
    makes all logits of `input_ids`. `prefix_ids` `[1, prefix]` stand before all rows, for policies that
    `shares_exactly` is true of.
    """
    if policy.plain_head:
        model = policy.model
        every = backbone_hidden(model, input_ids) if prefix_ids is None else hidden_behind(model, prefix_ids, input_ids)
        return head_logprobs(policy, every[rows, positions], targets, temperature, with_entropy)
    logits = policy.model(input_ids=input_ids, use_cache=False).logits[rows, positions]
    return logprobs_of_logits(logits, targets, temperature, with_entropy=with_entropy)


def head_logprobs(
    policy: Policy,
    hidden: torch.Tensor,
    targets: torch.Tensor,
    temperature: torch.Tensor,
    with_entropy: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The same from last hidden states `[picked, width]` of a policy with a plain head."""
    head: Any = policy.model.get_output_embeddings()
    return selected_logprobs(
        hidden, head.weight, getattr(head, "bias", None), targets, temperature, with_entropy=with_entropy
    )
