"""Lines of JSON as users bring them: gzipped or not, with a byte-order mark, broken in the middle."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

_GZIP_MAGIC = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"
_SURROGATE = re.compile("[\ud800-\udfff]")
_SHOWN_CHARACTERS = 80


def is_gzip(path: Path) -> bool:
    """Whether the file's first bytes are gzip's; its name is not asked. Raises OSError when it cannot be read."""
    with path.open("rb") as file:
        return file.read(2) == _GZIP_MAGIC


@contextmanager
def open_bytes(path: Path) -> Iterator[BinaryIO]:
    """The file's bytes, decompressed when it is gzipped. A damaged gzip file raises OSError, whatever the damage."""
    try:
        if is_gzip(path):
            with gzip.open(path, "rb") as file:
                yield cast(BinaryIO, file)
        else:
            with path.open("rb") as file:
                yield file
    except (EOFError, zlib.error) as error:
        raise OSError(f"damaged gzip file ({error})") from error


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
