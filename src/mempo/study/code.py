"""What a result depends on besides its configuration: the code, and the content of the files that it names."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import mempo
from mempo.config.base import leaves
from mempo.evaluate.folder import weights_mark

READERS = frozenset({"__init__.py", "__main__.py", "cli", "cluster", "diagnose", "study"})
READING_FILES = frozenset({"run/score.py", "train/start_check.py", "evaluate/plots.py"})
"""Parts of the package that look at runs and change none."""
_IMPORT_PATH = re.compile(r"([A-Za-z_]\w*(?:\.\w+)*):[A-Za-z_]\w*")
_FILES = ("data.train", "data.test", "data.corpus", "data.index", "model.path")


@cache
def code_digest() -> str:
    """A digest of the code that runs are made with. Comments, docstrings and layout do not change it."""
    digest, root = hashlib.sha256(mempo.__version__.encode()), Path(mempo.__file__).parent
    for file in sorted(root.rglob("*.py")):
        place = file.relative_to(root)
        if place.parts[0] not in READERS and place.as_posix() not in READING_FILES:
            digest.update(str(place).encode() + without_comments(file.read_text("utf-8")).encode())
    return digest.hexdigest()[:12]


def without_comments(source: str) -> str:
    """What a module does, without comments, docstrings and layout."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [part for part in body if not _is_text(part)]  # type: ignore[attr-defined]
    return ast.dump(tree)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def named_content(config: Mapping[str, Any]) -> dict[str, str]:
    """Digests of what a configuration names and does not hold: own code by import path, question files, models. What
    is not found here is left for the run to complain about."""
    values = dict(leaves(config))
    found = {
        name: digest for name in _FILES if isinstance(value := values.get(name), str) if (digest := _digest(value))
    }
    for value in _texts(list(values.values())):
        if match := _IMPORT_PATH.fullmatch(value):
            found[value] = _module_digest(match.group(1))
    return found


def _digest(path: str) -> str:
    if Path(path).is_dir():
        return weights_mark(Path(path)) + _sizes(Path(path))
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16] if Path(path).is_file() else ""


def _sizes(folder: Path) -> str:
    text = "".join(f"{file.name} {file.stat().st_size}\n" for file in sorted(folder.iterdir()) if file.is_file())
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _module_digest(name: str) -> str:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return ""
    return _digest(spec.origin) if spec and spec.origin else ""


def _texts(values: Any) -> Iterator[str]:
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, list | tuple):
            yield from _texts(value)
