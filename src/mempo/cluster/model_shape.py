"""What is known of a model before it is loaded: heads and window of any, and of known families what they weigh."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mempo.errors import UserError, nearest
from mempo.storage.model_files import context_window, read_object, text_value

_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True)
class ModelShape:
    """What a model of any family says of itself; None where it does not."""

    heads: int | None = None
    key_value_heads: int | None = None
    window_tokens: int | None = None
    experts: int | None = None

    @classmethod
    def of(cls, found: Any) -> ModelShape:
        """From the contents of config.json, or a Hugging Face configuration object."""
        heads = text_value(found, "num_attention_heads", "n_head", "n_heads")
        experts = text_value(found, "num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
        return cls(heads, text_value(found, "num_key_value_heads") or heads, context_window(found), experts)


def model_shape(path: str | None) -> ModelShape:
    """The shape of a model in a local folder; of a hub name nothing is known without asking the hub."""
    file = Path(path or "") / "config.json"
    return ModelShape() if path is None or not file.is_file() else ModelShape.of(read_object(file))


@dataclass(frozen=True)
class DecoderShape:
    """A decoder of gated layers with grouped keys and values (Llama, Mistral, Qwen2, Qwen3)."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_width: int
    ffn_width: int
    vocabulary: int
    tied: bool
    """Whether the output matrix is the embedding table."""
    qkv_bias: bool = False
    head_norms: bool = False
    """A norm over the queries and one over the keys of a head (Qwen3)."""

    @property
    def query_width(self) -> int:
        return self.heads * self.head_width

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_width

    @property
    def table(self) -> int:
        """Parameters of the embedding table, and of the output matrix."""
        return self.vocabulary * self.width

    @property
    def layer_parameters(self) -> int:
        attention = 2 * self.width * (self.query_width + self.kv_width)
        biases = (self.query_width + 2 * self.kv_width) * self.qkv_bias
        norms = 2 * self.width + 2 * self.head_width * self.head_norms
        return attention + biases + norms + 3 * self.width * self.ffn_width

    @property
    def parameters(self) -> int:
        return self.layers * self.layer_parameters + self.table * (1 if self.tied else 2) + self.width

    @property
    def multiplied(self) -> int:
        """Parameters that a token is multiplied with: all but the table it is looked up in."""
        return self.parameters - (0 if self.tied else self.table)

    def adapter_parameters(self, rank: int) -> int:
        """Of low-rank pairs at every matrix inside the layers: rank times the sum of inputs and outputs."""
        ends = (
            2 * (self.width + self.query_width) + 2 * (self.width + self.kv_width) + 3 * (self.width + self.ffn_width)
        )
        return self.layers * rank * ends

    def kv_bytes(self, number_bytes: int) -> int:
        """Keys and values of one token."""
        return 2 * self.layers * self.kv_width * number_bytes


def _qwen25(layers: int, width: int, heads: int, kv: int, ffn: int, vocabulary: int, tied: bool) -> DecoderShape:
    return DecoderShape(layers, width, heads, kv, width // heads, ffn, vocabulary, tied, qkv_bias=True)


def _qwen3(layers: int, width: int, heads: int, ffn: int, tied: bool) -> DecoderShape:
    return DecoderShape(layers, width, heads, 8, 128, ffn, 151_936, tied, head_norms=True)


def _llama(layers: int, width: int, heads: int, ffn: int, vocabulary: int, tied: bool) -> DecoderShape:
    return DecoderShape(layers, width, heads, 8, width // heads, ffn, vocabulary, tied)


KNOWN: dict[str, DecoderShape] = {
    "Qwen2.5-0.5B": _qwen25(24, 896, 14, 2, 4_864, 151_936, True),
    "Qwen2.5-1.5B": _qwen25(28, 1_536, 12, 2, 8_960, 151_936, True),
    "Qwen2.5-3B": _qwen25(36, 2_048, 16, 2, 11_008, 151_936, True),
    "Qwen2.5-7B": _qwen25(28, 3_584, 28, 4, 18_944, 152_064, False),
    "Qwen2.5-14B": _qwen25(48, 5_120, 40, 8, 13_824, 152_064, False),
    "Qwen2.5-32B": _qwen25(64, 5_120, 40, 8, 27_648, 152_064, False),
    "Qwen2.5-72B": _qwen25(80, 8_192, 64, 8, 29_568, 152_064, False),
    "Qwen3-0.6B": _qwen3(28, 1_024, 16, 3_072, True),
    "Qwen3-1.7B": _qwen3(28, 2_048, 16, 6_144, True),
    "Qwen3-4B": _qwen3(36, 2_560, 32, 9_728, True),
    "Qwen3-8B": _qwen3(36, 4_096, 32, 12_288, False),
    "Qwen3-14B": _qwen3(40, 5_120, 40, 17_408, False),
    "Qwen3-32B": _qwen3(64, 5_120, 64, 25_600, False),
    "Llama-3.2-1B": _llama(16, 2_048, 32, 8_192, 128_256, True),
    "Llama-3.2-3B": _llama(28, 3_072, 24, 8_192, 128_256, True),
    "Llama-3.1-8B": _llama(32, 4_096, 32, 14_336, 128_256, False),
    "Llama-3.1-70B": _llama(80, 8_192, 64, 28_672, 128_256, False),
    "Mistral-7B-v0.3": _llama(32, 4_096, 32, 14_336, 32_768, False),
}
"""Shapes by name, from the published configurations."""


def shape_of(model: str) -> DecoderShape:
    """The shape of a model folder, or of a known name with whatever follows it (`Qwen/Qwen2.5-7B-Instruct`).

    Raises:
        UserError: neither, or a model of another build.
    """
    file = Path(model) / "config.json"
    if file.is_file():
        return _of_config(file, read_object(file))
    word = model.rstrip("/").rpartition("/")[2].lower()
    known = [name for name in KNOWN if f"{word}-".startswith(f"{name.lower()}-")]
    if not known:
        raise UserError(
            f"the size of {model!r} is not known{nearest(word, KNOWN)}; give a folder with config.json, or a name that "
            "begins with " + ", ".join(KNOWN)
        )
    return KNOWN[max(known, key=len)]


def _of_config(file: Path, found: dict[str, Any]) -> DecoderShape:
    try:
        family = found["model_type"]
        if family not in _FAMILIES:
            raise UserError(f"{file} is of a {family} model, and the formulas are for {', '.join(_FAMILIES)}")
        heads, width = found["num_attention_heads"], found["hidden_size"]
        return DecoderShape(
            layers=found["num_hidden_layers"],
            width=width,
            heads=heads,
            kv_heads=found.get("num_key_value_heads") or heads,
            head_width=found.get("head_dim") or width // heads,
            ffn_width=found["intermediate_size"],
            vocabulary=found["vocab_size"],
            tied=bool(found.get("tie_word_embeddings", False)),
            qkv_bias=family == "qwen2",
            head_norms=family == "qwen3",
        )
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file} does not tell the shape of its model ({type(error).__name__}: {error})") from error
