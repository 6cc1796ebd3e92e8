"""Lines of JSON as users bring them: plain, gzip or Zstandard, with a byte-order mark, broken in the middle."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from mempo.storage import zst

_GZIP_MAGIC = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"
_SURROGATE = re.compile("[\ud800-\udfff]")
_SHOWN_CHARACTERS = 80

ID_KEYS = ("id", "_id", "docid", "doc_id", "pid", "docno")
"""The first of these that is there and not null is the document's id."""


def is_compressed(path: Path) -> bool:
    """Whether the file's first bytes are gzip's or Zstandard's; its name is not asked. OSError when unreadable."""
    return _head(path).startswith((_GZIP_MAGIC, zst.MAGIC))


@contextmanager
def open_bytes(path: Path) -> Iterator[BinaryIO]:
    """The file's bytes, decompressed when it is gzip or Zstandard. A file damaged in any way raises OSError."""
    head = _head(path)
    try:
        if head.startswith(_GZIP_MAGIC):
            with gzip.open(path, "rb") as file:
                yield cast(BinaryIO, file)
        elif head.startswith(zst.MAGIC):
            with zst.open_zst(path) as file:
                yield file
        else:
            with path.open("rb") as file:
                yield file
    except (EOFError, zlib.error) as error:
        raise OSError(f"damaged gzip file ({error})") from error


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(4)


def is_blank(line: bytes) -> bool:
    """Whether a line holds nothing: such lines are counted and skipped."""
    return not line.removeprefix(_BOM).strip()


def parse_object(line: bytes) -> dict[str, Any]:
    """The JSON object on one line. Raises ValueError with a reason that needs only file and line number before it."""
    try:
        text = line.removeprefix(_BOM).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 (byte {error.object[error.start]:#04x} at column {error.start})") from None
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg} at column {error.colno}): {shown(text)}") from None
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, thousands of nested brackets
        raise ValueError(f"not usable JSON ({error}): {shown(text)}") from None
    if not isinstance(value, dict):
        raise ValueError(f"expected one JSON object per line, got {json_name(value)}: {shown(text)}")
    return cast(dict[str, Any], value)


def valid_text(text: str) -> str:
    """`text` with lone surrogates (JSON escapes such as "\\ud800" make them) replaced by U+FFFD.

    Neither tokenizers nor UTF-8 can hold them, so they are removed where text enters.
    """
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def shown(text: str) -> str:
    """The beginning of a text as one printable line, for messages."""
    text = text.strip()
    return ascii(text[:_SHOWN_CHARACTERS] + ("..." if len(text) > _SHOWN_CHARACTERS else ""))


def json_name(value: object) -> str:
    """What JSON calls a value's type: for messages."""
    names: dict[type, str] = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
