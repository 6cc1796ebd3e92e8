"""A corpus's look-ups in a folder: written whole, mapped, and tied to the text file they were made from."""

from __future__ import annotations

import errno
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import ConfigDict, Field, TypeAdapter, with_config
from typing_extensions import TypedDict

from mempo.retrieval.errors import CorpusError
from mempo.retrieval.scan import Lookups, sha256_of
from mempo.storage.atomic import atomic_file
from mempo.storage.read_files import RECORD, DamagedFile, exists, read_json

SIDECAR_NAME = "corpus.json"
FORMAT = 1
_ARRAYS = ("offsets", "ids", "urls")
_REMEDY = "build the folder again"


@with_config(ConfigDict(extra="allow"))
class _Side(TypedDict):
    documents: Annotated[int, Field(ge=0)]
    bytes: int
    mtime_ns: int
    sha256: str
    text: str
    text_absolute: str
    source: list[Any]


_SIDE: TypeAdapter[Any] = TypeAdapter(_Side)


def write_lookups(folder: Path, text: Path, lookups: Lookups, source: list[Any] | None = None) -> None:
    """Writes corpus.{offsets,ids,urls}.npy, then corpus.json, which makes them a corpus.

    `source` is the `stamp` of the file the text was decompressed from, when that is another one.
    """
    for name in _ARRAYS:
        with atomic_file(folder / f"corpus.{name}.npy") as temporary:
            with temporary.open("wb") as file:
                np.save(file, getattr(lookups, name), allow_pickle=False)
            refuse_short(temporary)
    _write_sidecar(
        folder,
        text,
        {
            "documents": lookups.documents,
            "sha256": lookups.sha256,
            "bytes": lookups.size,
            "mtime_ns": lookups.mtime_ns,
            "source": source or [str(text.absolute()), lookups.size, lookups.mtime_ns],
        },
    )


def refuse_short(path: Path) -> None:
    """NumPy does not notice when the end of an array finds no room on the disk. Raises OSError: the file is cut."""
    try:
        np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from None


def is_current(folder: Path, source: Path) -> bool:
    """Whether `folder` holds look-ups made from the file `source` as it is now."""
    try:
        return _read_sidecar(folder)["source"] == stamp(source)
    except CorpusError:
        return False


def read_lookups(folder: Path, text: Path | None) -> tuple[Path, Lookups]:
    """The text file's path and the look-ups, mapped. Raises CorpusError when anything is missing or does not fit."""
    side = _read_sidecar(folder)
    text = _find_text(folder, side) if text is None else text
    mtime_ns = _refuse_other_text(folder, side, text)
    arrays: dict[str, Any] = {}
    for name in _ARRAYS:
        path = folder / f"corpus.{name}.npy"
        try:
            arrays[name] = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise CorpusError(f"{path} cannot be used ({error}); build the corpus folder again") from None
    lookups = Lookups(**arrays, sha256=side["sha256"], size=side["bytes"], mtime_ns=mtime_ns)
    numbers = (lookups.offsets.shape, lookups.ids.shape, lookups.urls.shape[0], int(lookups.offsets[-1]))
    count = side["documents"]
    if numbers != ((count + 1,), (2, count), 2, side["bytes"]):
        raise CorpusError(f"{folder}: corpus.json names {count} documents, its arrays do not; build the folder again")
    return text, lookups


def _write_sidecar(folder: Path, text: Path, side: dict[str, Any]) -> None:
    inside = text.resolve().parent == folder.resolve()
    side = {
        **side,
        "format": FORMAT,
        # relative first: a tree that is moved or mounted elsewhere as a whole still finds its text
        "text": os.path.relpath(text.resolve(), folder.resolve()),
        "text_absolute": "" if inside else str(text.absolute()),
    }
    with atomic_file(folder / SIDECAR_NAME) as temporary:
        temporary.write_text(json.dumps(side, indent=2) + "\n", encoding="utf-8")


def stamp(path: Path) -> list[Any]:
    """Path, size and time of change of a file as it is now."""
    stat = path.stat()
    return [str(path.absolute()), stat.st_size, stat.st_mtime_ns]


def _read_sidecar(folder: Path) -> dict[str, Any]:
    path = folder / SIDECAR_NAME
    if not exists(path):
        raise CorpusError(f"{folder} is not a corpus folder: it has no {SIDECAR_NAME}")
    try:
        form = read_json(path, RECORD, _REMEDY).get("format")
        if form != FORMAT:
            raise CorpusError(f"{path} has format {form!r}, this version reads format {FORMAT}; build the folder again")
        return read_json(path, _SIDE, _REMEDY)
    except DamagedFile as error:
        raise CorpusError(str(error)) from error


def _find_text(folder: Path, side: dict[str, Any]) -> Path:
    names = [folder / side["text"], side["text_absolute"]]
    candidates = [Path(name) for name in names if name]
    existing = [path for path in candidates if path.is_file()]
    fitting = [path for path in existing if path.stat().st_size == side["bytes"]]
    if not existing:
        raise CorpusError(f"the text of corpus folder {folder} is gone: neither {' nor '.join(map(str, candidates))}")
    return (fitting or existing)[0]


def _refuse_other_text(folder: Path, side: dict[str, Any], text: Path) -> int:
    """The text's time of change, when it is the text the look-ups were made from."""
    try:
        stat = text.stat()
    except OSError as error:
        raise CorpusError(f"corpus {text} cannot be read: {error.strerror}") from None
    again = f"{folder} was made from another text; build it again"
    if stat.st_size != side["bytes"]:
        raise CorpusError(f"corpus {text} has {stat.st_size} bytes, {side['bytes']} when it was indexed: {again}")
    if stat.st_mtime_ns == side["mtime_ns"]:
        return stat.st_mtime_ns
    sha256 = sha256_of(text)
    if sha256 != side["sha256"]:
        raise CorpusError(f"corpus {text} has sha256 {sha256[:12]}, {side['sha256'][:12]} when it was indexed: {again}")
    # A copy with another time: remember it where we may, so that the next load need not read it all.
    with suppress(OSError):
        _write_sidecar(folder, text, {**side, "mtime_ns": stat.st_mtime_ns})
    return stat.st_mtime_ns
