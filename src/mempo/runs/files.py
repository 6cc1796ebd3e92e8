"""Files that are whole or absent, and jsonl that survives a kill in mid-line."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO


@contextmanager
def whole_folder(final: Path) -> Iterator[Path]:
    """A folder to fill; it takes its final name when the block ends well, and is removed when it does not."""
    temporary = final.with_name(f".{final.name}.partial")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        for path in temporary.rglob("*"):
            if path.is_file():
                _sync(path)
        if final.exists():
            remove_whole(final)
        os.rename(temporary, final)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def remove_whole(folder: Path) -> None:
    """Remove a folder; it loses its name first, so a kill in between leaves no half of it under that name."""
    hidden = folder.with_name(f".{folder.name}.removed")
    shutil.rmtree(hidden, ignore_errors=True)
    os.rename(folder, hidden)
    shutil.rmtree(hidden)


def write_whole(path: Path, data: str | bytes) -> None:
    """Replace a file in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.partial")
    if isinstance(data, bytes):
        temporary.write_bytes(data)
    else:
        temporary.write_text(data, encoding="utf-8")
    _sync(temporary)
    os.replace(temporary, path)


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    """One jsonl line, handed to the system at once. A NaN is written as null: JSON has none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
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
    return json.dumps(_finite(record), ensure_ascii=False, allow_nan=False) + "\n"


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a jsonl file; a last line cut short by a kill is left out."""
    if not path.is_file():
        return []
    # Not `splitlines`: JSON strings may hold U+2028 and other ends of lines that are no ends of records.
    *whole, _ = path.read_bytes().split(b"\n")
    return [json.loads(line) for line in whole if line.strip()]


def _finite(value: Any) -> Any:
    if isinstance(value, float) and value not in (float("inf"), float("-inf")) and value == value:
        return value
    if isinstance(value, float):
        return None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
