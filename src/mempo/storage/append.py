"""Rollouts appended one by one, in the form that `save_rollouts` writes at once.

The arrays of a rollout are written before its line, so a whole line means a whole rollout. What a kill leaves behind is
repaired when the file is opened again: a line without its end, arrays without a line, and after a power cut lines whose
arrays never reached the disk. Such a rollout is as if it had never been made.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NotRequired

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from mempo.rollout.trajectory import Trajectory
from mempo.storage.atomic import full_disk_names
from mempo.storage.files import dump_line
from mempo.storage.read_files import DamagedFile, exists, parse_line, reading, refuse_foreign_end
from mempo.storage.rollouts import Sidecar, rollout_line, tokens_path

Key = tuple[str, int]
"""Question id and rollout number: what a rollout is known by within its file."""


class RolloutLine(TypedDict):
    """What lines of a rollout file have, and of which kind; the rest is looked at by those who use it."""

    question_id: str
    rollout: NotRequired[int]
    question: NotRequired[str | None]
    answer: NotRequired[str | None]
    stop: NotRequired[str]
    is_error: NotRequired[bool]


ROLLOUT = TypeAdapter(RolloutLine)
REMEDY = "take that line out or put the file back from a copy; a rollout that is missing can be played again"

_ITEM_BYTES = 4
_TOKENS = b', "question_ids": ['
_PLACES = ("generated", "logprobs", "note_ids", "action_ids", "advantages")


class RolloutAppender:
    """Appends to `path` and its sidecar; used as a context. Of two lines with one key the later one counts."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        repair(path)
        self._path = path
        self._lines: BinaryIO = path.open("ab")
        self._tokens: BinaryIO = tokens_path(path).open("ab")
        self._items = self._tokens.seek(0, os.SEEK_END) // _ITEM_BYTES

    def append(self, trajectory: Trajectory, facts: Mapping[str, Any]) -> dict[str, Any]:
        """The line as written; it is with the operating system when this returns."""
        sidecar = Sidecar(self._items)
        line = rollout_line(trajectory, facts, {}, sidecar)
        arrays = sidecar.bytes()
        with full_disk_names(self._path):
            self._tokens.write(arrays)
            self._tokens.flush()
            self._lines.write(dump_line(line).encode("utf-8", "replace"))
            self._lines.flush()
        self._items += len(arrays) // _ITEM_BYTES
        return line

    def __enter__(self) -> RolloutAppender:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        with full_disk_names(self._path):
            for file in (self._tokens, self._lines):
                os.fsync(file.fileno())
                file.close()


def repair(path: Path) -> int:
    """Cut off what a kill left half-written at the end of a rollout file; how many whole lines had to go with it.

    Raises:
        DamagedFile: as `refuse_lost_arrays`; nothing is cut then.
    """
    refuse_lost_arrays(path)
    end, dropped = _whole_part(path)
    tokens = tokens_path(path)
    size = tokens.stat().st_size if tokens.exists() else 0
    if size % _ITEM_BYTES:
        os.truncate(tokens, size - size % _ITEM_BYTES)
    if path.exists() and end < path.stat().st_size:
        os.truncate(path, end)
    return dropped


def refuse_lost_arrays(path: Path) -> None:
    """Raises DamagedFile: the sidecar holds the arrays of no line at all, which no kill does."""
    tokens, remedy = tokens_path(path), "put it back from a copy, or move both away and they are played again"
    with reading(tokens, remedy):
        size = tokens.stat().st_size if exists(tokens) else 0
        if exists(tokens) and not tokens.is_file():
            raise ValueError("it is not a file")
    end, dropped = _whole_part(path)
    if not end and (dropped > 1 or (dropped and not size)):
        what = "cut" if size else "empty" if tokens.exists() else "gone"
        raise DamagedFile(f"{tokens} is {what}, so the {dropped} rollouts in {path} cannot be used; {remedy}")


def _whole_part(path: Path) -> tuple[int, int]:
    """Bytes of a rollout file up to the last line whose arrays are there, and how many whole lines follow it."""
    if not path.exists():
        return 0, 0
    tokens = tokens_path(path)
    items = tokens.stat().st_size // _ITEM_BYTES if tokens.exists() else 0
    content = path.read_bytes()
    end, dropped = content.rfind(b"\n") + 1, 0
    while end:
        start = content.rfind(b"\n", 0, end - 1) + 1
        if _fits(content[start:end], items):
            break
        end, dropped = start, dropped + 1
    return end, dropped


def _fits(line: bytes, items: int) -> bool:
    """Whether a line is one, and its arrays lie within a sidecar of so many items."""
    try:
        record = json.loads(line)
        return items_end(record) <= items
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return False


def items_end(line: Mapping[str, Any]) -> int:
    """Where the arrays of a line end in the sidecar, in items."""
    places = [line["question_ids"]]
    for turn in line["turns"]:
        places += [turn[name] for name in _PLACES if turn.get(name)]
        places.append(turn["prompt"][2:])
        for name in ("observation", "short_observation"):
            places += [part[:2] for part in turn.get(name) or ()]
    return max(start + length for start, length in places)


def read_facts(path: Path, whole: bool = False) -> Iterator[dict[str, Any]]:
    """The whole lines of a rollout file without their tokens (`question_ids`, `turns`), which are most of a line and
    say nothing about a score; `whole`: with them. A line of another writer's is read whole. A torn last line is left
    out.

    Raises:
        DamagedFile: a line that is no JSON, or no rollout; its number is named.
    """
    with reading(path, REMEDY), path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                refuse_foreign_end(line, path, number, REMEDY)
                return
            yield parse_line(line, path, number, ROLLOUT, REMEDY) if whole else parse_facts(line, path, number)


def parse_facts(line: bytes, path: Path, number: int) -> dict[str, Any]:
    """A line of a rollout file without its tokens, where it can be taken apart so. Raises DamagedFile."""
    cut = line.rfind(_TOKENS)  # within a JSON string its quotes would be escaped
    try:
        return parse_line(line[:cut] + b"}" if cut > 0 else line, path, number, ROLLOUT, REMEDY)
    except DamagedFile:
        return parse_line(line, path, number, ROLLOUT, REMEDY)


def latest(lines: Iterator[dict[str, Any]]) -> dict[Key, dict[str, Any]]:
    """Lines by key, in the order in which the keys first came; a repeated key has its last line."""
    return {(line["question_id"], line["rollout"]): line for line in lines}
