"""The policy: a model, its tokenizer, and the adapter that is trained, if any."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from mempo.rollout.tokenizer import Tokenizer
from mempo.storage.model_files import context_window


@dataclass(frozen=True)
class Adapter:
    """What a policy with an adapter knows about it."""

    base: Policy
    """The policy without the adapter, over the same weights; it never changes while the adapter is trained."""
    base_path: str
    """Where the weights of `base` lie: a hub name, an absolute path, or one that begins with `..` and is relative to
    the folder that the adapter is saved in."""


@dataclass
class Policy:
    """A model with its tokenizer. `plain_head`: logits are the output embedding of the last hidden state, no more."""

    model: PreTrainedModel
    tokenizer: Tokenizer
    plain_head: bool
    version: int = 0
    """Counts the changes of the weights: what was computed under another version (keys and values) is of no use."""
    autocast: torch.dtype | None = None
    """Precision of the update's forward passes, where it is another than that of the weights."""
    checkpointing: bool = False
    """Whether the update makes activations again instead of keeping them."""
    adapter: Adapter | None = None
    """The low-rank adapter that is trained, if any."""

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def window(self) -> int | None:
        """The most tokens the model can see, where its configuration says so."""
        return context_window(self.model.config)
