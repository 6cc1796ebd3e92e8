"""Texts to vectors with any Hugging Face encoder, from safetensors only. Importing this module imports torch."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from transformers import AutoModel
from transformers.utils import logging as transformers_logging

from mempo.config.retrieval import EncoderSettings, Pooling
from mempo.errors import UserError
from mempo.retrieval.encoder_folder import encoder_folder, resolved_encoder, weights_sha256
from mempo.storage.model_loading import load_tokenizer, load_whole

transformers_logging.disable_progress_bar()  # loading takes a second, and our own bar may be shown

Vectors = np.ndarray[Any, np.dtype[np.float32]]
"""[texts, dimension] float32, in the order of the texts."""


class Encoder(Protocol):
    """Anything that makes vectors. `identity` holds all that a vector depends on, as plain data for JSON."""

    dimension: int

    @property
    def identity(self) -> Mapping[str, Any]: ...

    def queries(self, texts: Sequence[str]) -> Vectors: ...

    def passages(self, texts: Sequence[str]) -> Vectors: ...


class TransformersEncoder:
    """See Encoder. Safe to call from threads. `settings` are resolved: nothing in them is None."""

    def __init__(self, settings: EncoderSettings) -> None:
        """Loads the weights. Raises UserError when that cannot be done."""
        folder = encoder_folder(settings.path)
        self.settings = resolved_encoder(settings, folder)
        self.folder = folder
        self.weights_sha256 = weights_sha256(folder)
        self._device = _device(settings.device)
        self._tokenizer, self._model = _load(folder, self.settings.dtype)
        self._model.to(self._device).eval()
        self._padding: int = self._tokenizer.pad_token_id or 0
        self._lock = threading.Lock()
        self.dimension = int(self._model.config.hidden_size)

    @property
    def identity(self) -> Mapping[str, Any]:
        return self.settings.identity(self.weights_sha256)

    def queries(self, texts: Sequence[str]) -> Vectors:
        return self._encode([f"{self.settings.query_prefix}{text}" for text in texts])

    def passages(self, texts: Sequence[str]) -> Vectors:
        return self._encode([f"{self.settings.passage_prefix}{text}" for text in texts])

    def _encode(self, texts: list[str]) -> Vectors:
        vectors = np.empty((len(texts), self.dimension), dtype=np.float32)
        ids = self._tokenize(texts)
        # Texts of like length go together, so that little is computed on padding.
        order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
        for start in range(0, len(order), self.settings.batch):
            rows = order[start : start + self.settings.batch]
            vectors[rows] = self._forward([ids[i] for i in rows])
        return vectors

    def _tokenize(self, texts: list[str]) -> list[list[int]]:
        if not texts:
            return []
        with self._lock:  # a tokenizer keeps its cutting and padding as state
            rows = self._tokenizer(
                texts,
                truncation=True,
                max_length=self.settings.max_tokens,
                padding=False,
                return_attention_mask=False,
                split_special_tokens=True,  # a passage that says [SEP] means the letters
            )["input_ids"]
        return [row or [self._padding] for row in rows]  # an empty text, where a tokenizer adds nothing of its own

    @torch.inference_mode()
    def _forward(self, rows: list[list[int]]) -> np.ndarray[Any, Any]:
        longest = max(len(row) for row in rows)
        ids = torch.tensor([row + [self._padding] * (longest - len(row)) for row in rows], device=self._device)
        lengths = torch.tensor([len(row) for row in rows], device=self._device)
        mask = (torch.arange(longest, device=self._device)[None] < lengths[:, None]).long()
        hidden = self._model(input_ids=ids, attention_mask=mask).last_hidden_state.float()
        vectors = pool(hidden, lengths, self.settings.pooling or "mean")
        if self.settings.normalize:
            vectors = torch.nn.functional.normalize(vectors, dim=-1)
        return vectors.cpu().numpy()


def pool(hidden: torch.Tensor, lengths: torch.Tensor, pooling: Pooling) -> torch.Tensor:
    """One vector [rows, width] for each of the right-padded rows of `hidden` [rows, tokens, width].

    `lengths` [rows] counts the real tokens of each row, at least 1.
    """
    if pooling == "cls":
        return hidden[:, 0]
    if pooling == "last":
        return hidden[torch.arange(len(hidden), device=hidden.device), lengths - 1]
    real = torch.arange(hidden.shape[1], device=hidden.device)[None] < lengths[:, None]
    return (hidden * real[..., None]).sum(dim=1) / lengths[:, None]


def _load(folder: Path, dtype: str) -> tuple[Any, Any]:
    tokenizer = load_tokenizer(folder, "encoder")
    model = load_whole(AutoModel, folder, "encoder", dtype=getattr(torch, dtype))
    if getattr(model.config, "is_encoder_decoder", False):
        raise UserError(f"the model in {folder} has an encoder and a decoder; give one that is an encoder alone")
    return tokenizer, model


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(f"the encoder's device is {name!r}, but torch sees no CUDA device; use cpu or auto")
    try:
        return torch.device(name)
    except RuntimeError:
        raise UserError(f"the encoder's device {name!r} is not one that torch knows; use cpu, cuda or auto") from None
