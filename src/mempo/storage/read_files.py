"""Files that mempo wrote, read back: the one boundary where damage is noticed and said in a sentence.

A file can come back empty, cut, of another form, or not at all. Whoever reads one names the form it must have and what
to do when it has another; everything that can be wrong becomes a `DamagedFile`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from mempo.config.yaml_text import load_yaml
from mempo.errors import ConfigError, UserError

T = TypeVar("T")
RECORD: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])
PUT_BACK = "put the right file back from a copy"
_WRONG: tuple[type[Exception], ...] = (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError)
_WRONG += (OverflowError, EOFError)
_SHOWN_CHARS = 200


class DamagedFile(UserError):
    """A file of ours that cannot be read: its path, what is wrong with it, and what to do."""


@contextmanager
def reading(path: Path, remedy: str) -> Iterator[None]:
    """Whatever goes wrong while the content of `path` is taken apart is damage to that file. A `UserError` passes."""
    try:
        yield
    except UserError:
        raise
    except _WRONG as error:
        raise DamagedFile(f"{path} is damaged ({reason(error)}); {remedy}") from error


def exists(path: Path) -> bool:
    """Whether anything bears the name, a folder or a link to nowhere too: reading it then says what is wrong."""
    return path.exists() or path.is_symlink()


def read_bytes(path: Path, remedy: str) -> bytes:
    """Raises DamagedFile: the file is missing, or cannot be read."""
    with reading(path, remedy):
        return path.read_bytes()


def read_json(path: Path, shape: TypeAdapter[T], remedy: str) -> T:
    """The JSON value in a file, which must have `shape` exactly: no string is taken for a number.

    Raises:
        DamagedFile: anything else.
    """
    with reading(path, remedy):
        text = path.read_text("utf-8")
        if not text.strip():
            raise ValueError("it is empty")
        return shape.validate_python(json.loads(text), strict=True)


def read_yaml(path: Path, remedy: str) -> dict[str, Any]:
    """The mapping in a YAML file, with at least one key.

    Raises:
        DamagedFile: anything else.
    """
    with reading(path, remedy):
        text = path.read_text("utf-8")
    try:
        found = load_yaml(text, "it")
    except ConfigError as error:
        raise DamagedFile(f"{path} is damaged ({error}); {remedy}") from error
    if not found:
        raise DamagedFile(f"{path} is damaged (it holds no settings); {remedy}")
    return found


def read_lines(path: Path, shape: TypeAdapter[Any] = RECORD, remedy: str = PUT_BACK) -> list[dict[str, Any]]:
    """The whole lines of a jsonl file, each a value of `shape`; none where there is no file. A last line without its
    end was cut short by a kill, and is left out.

    Raises:
        DamagedFile: a line that is no JSON or of another form, named by its number.
    """
    if not exists(path):
        return []
    # Not `splitlines`: JSON strings may hold U+2028 and other ends of lines that are no ends of records.
    *whole, torn = read_bytes(path, remedy).split(b"\n")
    found = [parse_line(line, path, n, shape, remedy) for n, line in enumerate(whole, start=1) if line.strip()]
    refuse_foreign_end(torn, path, len(whole) + 1, remedy)
    return found


def refuse_foreign_end(torn: bytes, path: Path, number: int, remedy: str) -> None:
    """What a kill leaves of a line is its beginning, and all of ours begin alike. Raises DamagedFile: it does not."""
    if torn.strip() and not torn.startswith(b"{"):
        raise DamagedFile(f"{path} is damaged (line {number}: it does not begin as a line of ours); {remedy}")


def parse_line(line: bytes, path: Path, number: int, shape: TypeAdapter[Any], remedy: str) -> dict[str, Any]:
    """The record in one line of a jsonl file. Raises DamagedFile, with the number of the line."""
    try:
        record = json.loads(line)
        shape.validate_python(record, strict=True)
    except (ValueError, RecursionError) as error:
        raise DamagedFile(f"{path} is damaged (line {number}: {reason(error)}); {remedy}") from error
    return record


def reason(error: BaseException) -> str:
    """What is wrong, in half a sentence on one line."""
    if isinstance(error, ValidationError):
        problem = error.errors(include_url=False)[0]
        place = ".".join(map(str, problem["loc"]))
        return f"{place}: {problem['msg']}" if place else problem["msg"]
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return f"it is not UTF-8 at byte {error.start}"
    if isinstance(error, json.JSONDecodeError):
        return f"it is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
    if isinstance(error, KeyError):
        return f"it has no {error}"
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    text = " ".join(str(error).split())
    return text[:_SHOWN_CHARS] or type(error).__name__
