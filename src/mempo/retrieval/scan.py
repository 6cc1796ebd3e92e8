"""One pass over a corpus file: where each document lies, its keys, and a hash of the whole."""

from __future__ import annotations

import hashlib
import os
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mempo.retrieval.document import Document
from mempo.retrieval.errors import CorpusError
from mempo.retrieval.lookup import Table, TableBuilder, repeated
from mempo.retrieval.rows import document_of
from mempo.storage.jsonl import is_blank, parse_object

_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Lookups:
    """What a corpus keeps beside its text; arrays may be memory-mapped.

    `offsets` [documents + 1] int64: document i is in the bytes offsets[i] to offsets[i + 1] of the text file;
    `ids`, `urls`: tables of lookup.py from key to document number; `sha256`, `size`: of the text file's bytes;
    `mtime_ns`: its time of change when it was read.
    """

    offsets: np.ndarray[Any, np.dtype[np.int64]]
    ids: Table
    urls: Table
    sha256: str
    size: int
    mtime_ns: int

    @property
    def documents(self) -> int:
        return len(self.offsets) - 1


def scan(path: Path, name: str) -> Lookups:
    """Reads every line of the uncompressed file at `path`; `name` is what messages call the file.

    Raises CorpusError at the first broken line (naming it), when there is no document, and when an id is given twice.
    """
    offsets, ids, urls = array("q"), TableBuilder(), TableBuilder()
    digest = hashlib.sha256()
    end = 0
    with path.open("rb") as file:
        mtime_ns = os.fstat(file.fileno()).st_mtime_ns
        for number, line in enumerate(file, start=1):
            start, end = end, end + len(line)
            digest.update(line)
            if is_blank(line):
                continue
            position = len(offsets)
            try:
                document = parse_document(line, position)
            except ValueError as error:
                raise CorpusError(f"corpus {name}, line {number}: {error}") from None
            offsets.append(start)
            ids.add(document.id, position)
            if document.url is not None:
                urls.add(document.url, position)
    if not offsets:
        raise CorpusError(f"corpus {name} holds no documents ({end} bytes); it needs one JSON object per line")
    offsets.append(end)
    found = Lookups(np.array(offsets, dtype=np.int64), ids.table(), urls.table(), digest.hexdigest(), end, mtime_ns)
    _refuse_repeated_ids(path, name, found)
    return found


def parse_document(line: bytes, position: int) -> Document:
    """The document on one line; the default id is its number in the corpus. Raises ValueError with the reason."""
    return document_of(parse_object(line), default_id=str(position))


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _refuse_repeated_ids(path: Path, name: str, found: Lookups) -> None:
    # Equal hashes are only candidates; the lines themselves decide.
    for group in repeated(found.ids):
        seen: dict[str, int] = {}
        for position in group:
            start, end = int(found.offsets[position]), int(found.offsets[position + 1])
            with path.open("rb") as file:
                file.seek(start)
                key = parse_document(file.read(end - start), position).id
            if key in seen:
                first, second = (_line_number(path, int(found.offsets[p])) for p in (seen[key], position))
                raise CorpusError(
                    f"corpus {name}: id {key!r} is on line {first} and on line {second}; ids must be unique "
                    "(documents without an id are numbered from 0)"
                )
            seen[key] = position


def _line_number(path: Path, offset: int) -> int:
    lines = 1
    with path.open("rb") as file:
        while offset > 0:
            block = file.read(min(_BLOCK, offset))
            offset -= len(block)
            lines += block.count(b"\n")
    return lines
