"""A policy of a hundred thousand parameters, made from scratch for one environment, that learns on a laptop in minutes.

Small models learn a format quickly and never learn to look things up, unless they are taught to copy first: random
chunks of tokens, written again in shuffled order. The tokenizer gives every name one token, and spells unknown text in
bytes, so nothing is ever out of its vocabulary; the copying covers all of it, so that names never seen in a question
can be copied too.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as HfTokenizer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from mempo.config.train import ToySettings
from mempo.engine.model import wrap_policy
from mempo.engine.policy import Policy
from mempo.rollout.protocol import TAGS, closing, opening
from mempo.rollout.tokenizer import Tokenizer
from mempo.rollout.trajectory import Row, Segment
from mempo.train.sft import RowSource

HEAD_SIZE = 32
INIT_RANGE = 0.12
ROPE_THETA = 100.0
"""Base of the rotary frequencies: small, because contexts are short."""
LOOK_BACK = 3.0
"""How strongly the heads of the first layer begin by looking one, two, three … tokens back."""

# A name, an attribute with its "of", a separator, a line break: each is one piece.
_PIECES = r"\d+ |[a-z][a-z ]* of |[:;] |\n|[^:;\n]+|[:;]"


def toy_tokenizer(texts: Iterable[str], extra: Sequence[str] = (), actions: Sequence[str] = ()) -> Tokenizer:
    """A lossless tokenizer: every piece of `texts` and `extra` is a token, all else is spelled in bytes. `actions` are
    tags of an environment's own."""
    split = pre_tokenizers.Split(Regex(_PIECES), "isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    pieces = dict.fromkeys(piece for text in (*extra, *texts) for piece, _ in split.pre_tokenize_str(text))
    vocabulary: dict[str, int] = {}
    for symbol in (*sorted(pre_tokenizers.ByteLevel.alphabet()), *(_in_bytes(to_bytes, piece) for piece in pieces)):
        vocabulary.setdefault(symbol, len(vocabulary))
    tokenizer = HfTokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<eos>", "<pad>")])
    tags = [tag for name in dict.fromkeys((*TAGS, *actions)) for tag in (opening(name), closing(name))]
    tokenizer.add_tokens([AddedToken(tag, normalized=False) for tag in tags])
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>"))


def _in_bytes(to_bytes: pre_tokenizers.ByteLevel, piece: str) -> str:
    return "".join(part for part, _ in to_bytes.pre_tokenize_str(piece))


def toy_policy(tokenizer: Tokenizer, settings: ToySettings, seed: int) -> Policy:
    """Random weights, tied embeddings. Torch's generator is left as it was."""
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=tokenizer.size,
        hidden_size=settings.hidden_size,
        intermediate_size=2 * settings.hidden_size,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.heads,
        head_dim=HEAD_SIZE,
        attention_bias=True,
        rope_parameters={"rope_theta": ROPE_THETA, "rope_type": "default"},
        max_position_embeddings=settings.window_tokens,
        tie_word_embeddings=True,
        initializer_range=INIT_RANGE,
        eos_token_id=tokenizer.eos_id,
        pad_token_id=tokenizer.hf.pad_token_id,
        bos_token_id=None,
    )
    model = LlamaForCausalLM(config)
    torch.set_rng_state(state)
    _look_back(model, settings.heads, LOOK_BACK)
    return wrap_policy(model, tokenizer)


@torch.no_grad()
def _look_back(model: LlamaForCausalLM, heads: int, strength: float) -> None:
    """Let head h of the first layer begin by looking h + 1 tokens back.

    To copy, a model must know what stood before each token. Heads that look back are slow to form from nothing; with
    rotary positions two constant biases make one: scores depend on R(n - m) alone, so a query turned back by h + 1
    steps answers best to a key h + 1 tokens earlier. Training goes on from there; nothing is frozen.
    """
    size, half = HEAD_SIZE, HEAD_SIZE // 2
    turn = ROPE_THETA ** (-torch.arange(half) * 2 / size)  # radians per token of each pair
    bias = strength * (size**0.5 / half) ** 0.5
    attention: Any = model.model.layers[0].self_attn
    for head in range(heads):
        dims, back = slice(head * size, (head + 1) * size), turn * (head + 1)
        attention.k_proj.bias[dims] = bias * torch.cat([torch.ones(half), torch.zeros(half)])
        attention.q_proj.bias[dims] = bias * torch.cat([back.cos(), -back.sin()])
        attention.q_proj.weight[dims] *= 0.3  # what tokens are matters little at first
        attention.k_proj.weight[dims] *= 0.3


_CHUNKS, _CHUNK_TOKENS, _REPEATS = (2, 4), (2, 5), 3


def copy_rows(tokenizer: Tokenizer, count: int, rng: random.Random) -> list[Row]:
    """Rows `chunk sep chunk sep …`, then the same chunks three times more, each time in another order.

    The loss is on what can be known: all but the first token of a copied chunk.
    """
    tokens = copyable(tokenizer)
    separator = tokenizer.encode_trusted("\n")[0]
    rows = []
    for _ in range(count):
        chunks = [rng.choices(tokens, k=rng.randint(*_CHUNK_TOKENS)) for _ in range(rng.randint(*_CHUNKS))]
        ids = [i for chunk in chunks for i in (*chunk, separator)]
        segments: list[Segment] = []
        for _ in range(_REPEATS):
            rng.shuffle(chunks)
            for chunk in chunks:
                segments.append(Segment(len(segments), len(ids) + 1, len(ids) + len(chunk) + 1))
                ids += [*chunk, separator]
        rows.append(Row(0, tuple(ids), tuple(segments)))
    return rows


def copyable(tokenizer: Tokenizer) -> list[int]:
    """Every token that can occur in the environment's texts: all but bytes that are no name, and special tokens.

    A capital or a digit alone is a name in some environments: `symbol of Hydrogen: H`.
    """
    special, alone = set(tokenizer.hf.all_special_ids), re.compile(r"[A-Z0-9:;\n]")
    pieces = ((i, tokenizer.decode([i])) for i in range(tokenizer.size) if i not in special)
    return [i for i, text in pieces if alone.fullmatch(text) or (len(text.encode()) > 1 and text != "\ufffd")]


def with_warmup(rows_at: RowSource, tokenizer: Tokenizer, settings: ToySettings, seed: int) -> RowSource:
    """Copying alone for the first steps, then mixed into the rows of `rows_at`."""

    def mixed(step: int) -> Sequence[Row]:
        rng = random.Random(f"{seed} copy {step}")
        if step < settings.warmup_steps:
            return copy_rows(tokenizer, settings.copy_rows, rng)
        rows = list(rows_at(step - settings.warmup_steps))
        copies = round(len(rows) * settings.copy_share / (1 - settings.copy_share))
        return rows + copy_rows(tokenizer, copies, rng)

    return mixed
