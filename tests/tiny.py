"""Tokenizers of several families and tiny random models, built in the tests."""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from mempo.engine.model import Policy, wrap_policy
from mempo.tokens import Codec

TAG_TOKENS = [
    f"<{slash}{tag}>" for tag in ("mem", "think", "search", "access", "answer", "tool_response") for slash in ("", "/")
]
CORPUS = [
    "<mem> the capital of France is Paris </mem><think>so</think><answer>Paris; Yen</answer>",
    "<search>capital of Japan</search> hello world Zürich 東京 [1] truncated error: a turn\n\n",
    "<tool_response>\nno\n</tool_response> 0 1 2 3 4 5 6 7 8 9 . , ; : ? ! - ' \" ( )",
] * 10


def byte_bpe() -> Tokenizer:
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=380, initial_alphabet=alphabet, special_tokens=["<eos>"], show_progress=False
    )
    t.train_from_iterator(CORPUS, trainer)
    return t


def unigram() -> Tokenizer:
    t = Tokenizer(models.Unigram())
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    t.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=200, special_tokens=["<unk>", "<eos>"], unk_token="<unk>", show_progress=False
    )
    t.train_from_iterator(CORPUS, trainer)
    return t


def word_level() -> Tokenizer:
    words = sorted({w for line in CORPUS for w in line.replace("<", " <").replace(">", "> ").split()})
    words += [w for w in ("a", "b", "<", ">", "</", "mem", "x", "q") if w not in words]
    t = Tokenizer(models.WordLevel({w: i for i, w in enumerate(["<unk>", "<eos>", *words])}, unk_token="<unk>"))
    t.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return t


FAMILIES = {"byte_bpe": byte_bpe, "unigram": unigram, "word_level": word_level}


def make_codec(family: str = "byte_bpe", tags: str = "none", **keywords: Any) -> Codec:
    """`tags`: none | added | special, how the tags of the turn language are in the vocabulary."""
    t = FAMILIES[family]()
    if tags == "added":
        t.add_tokens([AddedToken(tag, normalized=False) for tag in TAG_TOKENS])
    elif tags == "special":
        t.add_special_tokens([AddedToken(tag, special=True, normalized=False) for tag in TAG_TOKENS])
    t.add_special_tokens([AddedToken("<eos>", special=True, normalized=False)])
    return Codec(PreTrainedTokenizerFast(tokenizer_object=t, eos_token="<eos>", pad_token="<eos>", **keywords))


def tiny_llama(codec: Codec, seed: int = 0, **changes: Any) -> Policy:
    """Two layers, width 32, random weights."""
    torch.manual_seed(seed)
    options: dict[str, Any] = {
        "vocab_size": codec.size,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
        "initializer_range": 0.2,
        "tie_word_embeddings": True,
        "eos_token_id": codec.eos_id,
        "pad_token_id": codec.eos_id,
        "bos_token_id": None,
    }
    return wrap_policy(LlamaForCausalLM(LlamaConfig(**{**options, **changes})), codec)
