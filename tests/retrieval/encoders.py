"""Encoders for tests: one that hashes words, exactly the same everywhere, and a tiny random BERT on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import BertConfig, BertModel, BertTokenizer

from mempo.config.retrieval import DenseSettings
from mempo.retrieval.corpus import Corpus
from mempo.retrieval.dense import DenseIndex
from mempo.retrieval.dense_build import prepare, prepare_file, refuse_inside
from mempo.retrieval.encoder import Encoder
from mempo.retrieval.words import words

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[", "]", ":", "query", "passage", "sep", "the", "capital", "of"]
WORDS += ["france", "is", "paris", "japan", "tokyo", "a", "b", "c"]


class HashEncoder:
    """The sum of a fixed random vector per word, of length 1. Counts the passages it was asked for."""

    def __init__(self, dimension: int = 32, seed: int = 0, fail_after: int | None = None) -> None:
        self.dimension = dimension
        self.seed = seed
        self.encoded = 0
        self.fail_after = fail_after

    @property
    def identity(self) -> Mapping[str, Any]:
        return {"name": "hash", "seed": self.seed}

    def queries(self, texts: Sequence[str]) -> np.ndarray[Any, np.dtype[np.float32]]:
        vectors = np.stack([self._vector(text) for text in texts])
        return (vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)).astype(np.float32)

    def passages(self, texts: Sequence[str]) -> np.ndarray[Any, np.dtype[np.float32]]:
        if self.fail_after is not None and self.encoded + len(texts) > self.fail_after:
            raise KeyboardInterrupt
        self.encoded += len(texts)
        return self.queries(texts)

    def _vector(self, text: str) -> np.ndarray[Any, Any]:
        found = np.zeros(self.dimension)
        for word in words(text):
            digest = hashlib.blake2b(f"{self.seed} {word}".encode(), digest_size=8).digest()
            found += np.random.default_rng(int.from_bytes(digest, "little")).standard_normal(self.dimension)
        return found


def build_dense(
    corpus: Corpus,
    out_dir: Path,
    encoder: Encoder,
    cache: Path,
    settings: DenseSettings | None = None,
    force: bool = False,
) -> DenseIndex:
    return prepare(corpus, encoder, cache, settings or DenseSettings(), force=force).put(corpus, out_dir, encoder)


def adopt_faiss(
    corpus: Corpus,
    out_dir: Path,
    encoder: Encoder,
    file: Path,
    settings: DenseSettings | None = None,
    force: bool = False,
) -> DenseIndex:
    refuse_inside(file, out_dir)
    return prepare_file(corpus, encoder, file, settings or DenseSettings(), force).put(corpus, out_dir, encoder)


def tiny_bert(folder: Path, seed: int = 0) -> Path:
    """Saves a random BERT of width 16 that sees 32 tokens, with a tokenizer of a few words."""
    folder.mkdir(parents=True)
    (folder / "words.txt").write_text("\n".join(WORDS) + "\n", "utf-8")
    tokenizer = BertTokenizer(vocab=str(folder / "words.txt"))
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
    )
    BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
