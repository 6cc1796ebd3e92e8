"""Files replaced in one step, and jsonl that survives a kill in mid-line."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from mempo.storage.atomic import atomic_file, full_disk_names
from mempo.storage.read_files import read_lines as read_lines


def write_atomic(path: Path, data: str | bytes) -> None:
    """Replace a file in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as temporary:
        temporary.write_bytes(data.encode() if isinstance(data, str) else data)


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    """One jsonl line, handed to the system at once. A NaN is written as null: JSON has none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with full_disk_names(path), path.open("a+b") as file:
        _drop_torn_line(file)
        file.write(dump_line(record).encode())


def _drop_torn_line(file: BinaryIO) -> None:
    """A kill in mid-line leaves a beginning; what is appended must not be glued to it."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(size - 1, 0))
    if file.read(1) not in (b"", b"\n"):
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)


def dump_line(record: Mapping[str, Any]) -> str:
    """A jsonl line; what is not finite is written as null."""
    try:
        return json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"
    except (ValueError, TypeError):  # rare: looking through every record for it first takes longer than writing it
        return json.dumps(_finite(record), ensure_ascii=False, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, float) and value not in (float("inf"), float("-inf")) and value == value:
        return value
    if isinstance(value, float):
        return None
    if isinstance(value, Mapping):
        return {key if _is_json_key(key) else str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _is_json_key(key: Any) -> bool:
    """JSON has a spelling for these by itself, and it is to be the same whether or not a line holds a NaN."""
    return key is None or isinstance(key, str | int | float)
