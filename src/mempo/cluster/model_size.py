"""How large a policy is, from the files of its folder: rough needs before anything is loaded."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path

from mempo.config.engine import ModelSettings

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_MAX_HEADER_BYTES = 100 << 20


@dataclass(frozen=True)
class PolicySize:
    parameters: int

    def served_bytes(self, model: ModelSettings) -> int:
        """Weights of a rollout server, over all of its GPUs."""
        return self.parameters * _BYTES[model.autocast if model.autocast != "none" else model.dtype]

    def trained_bytes(self, model: ModelSettings) -> int:
        """Weights, gradients and the two moments of AdamW, over all GPUs; of adapters the weights alone count."""
        return self.parameters * _BYTES[model.dtype] * (1 if model.lora else 4)


def policy_size(path: str) -> PolicySize | None:
    """Counted in the headers of *.safetensors; None for a hub name, whose files are not here."""
    files = sorted(Path(path).glob("*.safetensors")) if path and Path(path).is_dir() else []
    if not files:
        return None
    return PolicySize(sum(map(_parameters, files)))


def _parameters(file: Path) -> int:
    """A safetensors file begins with the length of a JSON header that names the shape of every tensor.

    Raises:
        ValueError: a file that does not.
    """
    with file.open("rb") as opened:
        start = opened.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 0 < length <= _MAX_HEADER_BYTES:
            raise ValueError(f"{file} is no safetensors file")
        header = json.loads(opened.read(length))
    return sum(prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
