"""A corpus of documents whose text stays on disk."""

from __future__ import annotations

import json
import operator
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

from mempo.retrieval.corpus_files import SIDECAR_NAME, is_current, read_lookups, stamp, write_lookups
from mempo.retrieval.corpus_tables import is_unpacked, unpack
from mempo.retrieval.document import Document as Document
from mempo.retrieval.errors import CorpusError
from mempo.retrieval.lookup import find
from mempo.retrieval.scan import Lookups, parse_document, scan
from mempo.storage.atomic import atomic_file
from mempo.storage.jsonl import valid_text

TEXT_NAME = "corpus.jsonl"


class Corpus:
    """Documents 0..len-1 of a jsonl file, in the forms of rows.py; read one at a time, from any thread.

    In memory (or, when loaded from a folder, memory-mapped) are 8 bytes per document for its place, 16 for its id and
    16 for its url. The file must not change while the corpus is in use.
    """

    def __init__(self, text: Path, lookups: Lookups, temporary: tempfile.TemporaryDirectory[str] | None = None) -> None:
        """Use `open`, `load` or `from_documents`. `temporary` is the folder, if any, that dies with this corpus."""
        self.text_path = text.absolute()
        self.lookups = lookups
        self._temporary = temporary
        self.text_stays = temporary is None
        """Whether the text will still lie there later; otherwise `save` takes it along."""
        self._file = os.open(self.text_path, os.O_RDONLY)
        self._close = weakref.finalize(self, os.close, self._file)

    @classmethod
    def open(cls, path: str | Path, index_dir: str | Path | None = None) -> Corpus:
        """The corpus in a file of lines of JSON, a table (TSV, CSV, parquet), either gzip or Zstandard too, or a folder
        `save` wrote: one checking pass.

        With `index_dir` the pass's result is kept there, memory-mapped, and a table or compressed file is unpacked into
        it; without, the result is in memory and what was unpacked in a temporary folder that dies with the corpus.
        Raises CorpusError: no such file, a folder, empty, a broken line (named), an id that is given twice.
        """
        path = Path(path)
        if (path / SIDECAR_NAME).is_file():
            return cls.load(path)
        try:
            unpacked = is_unpacked(path)
            if index_dir is not None:
                folder = Path(index_dir)
                if is_current(folder, path):
                    with suppress(CorpusError):  # damaged meanwhile: made again below
                        return cls.load(folder)
                _index(path, folder, unpacked)
                return cls.load(folder)
            if unpacked:
                return cls(path, scan(path, str(path)))
            temporary = tempfile.TemporaryDirectory(prefix="mempo-corpus-")
            text = Path(temporary.name) / TEXT_NAME
            unpack(path, text)
            return cls(text, scan(text, str(path)), temporary)
        except FileNotFoundError:
            raise CorpusError(f"corpus {path} does not exist") from None
        except IsADirectoryError:
            raise CorpusError(f"corpus {path} is a folder; name one .jsonl, .tsv, .csv or .parquet file") from None
        except OSError as error:
            where = f" ({error.filename})" if error.filename else ""
            raise CorpusError(f"corpus {path}: {error.strerror or error}{where}") from error

    @classmethod
    def load(cls, folder: str | Path, text: str | Path | None = None) -> Corpus:
        """The corpus whose look-ups `save` wrote into `folder`, memory-mapped; `text` says where its file is now.

        Raises CorpusError when the folder is incomplete or the text file is gone or not the one it was made from.
        """
        return cls(*read_lookups(Path(folder), None if text is None else Path(text)))

    @classmethod
    def from_documents(cls, documents: Iterable[Document], folder: str | Path) -> Corpus:
        """Writes `folder`/corpus.jsonl with its look-ups beside it and loads them; other files there stay.

        A corpus that stood there before is replaced once the new one is whole. Raises CorpusError as `open` does.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_file(folder / TEXT_NAME) as text:
            with text.open("w", encoding="utf-8", newline="\n") as file:
                for document in documents:
                    row = {"id": document.id, "title": document.title, "text": document.text}
                    if document.url is not None:
                        row["url"] = document.url
                    file.write(valid_text(json.dumps(row, ensure_ascii=False)) + "\n")
            # Before the text has its name: without its look-ups it would look like somebody else's.
            write_lookups(folder, folder / TEXT_NAME, scan(text, str(folder / TEXT_NAME)))
        return cls.load(folder)

    def save(self, folder: str | Path, *, with_text: bool = False) -> None:
        """Writes the look-ups into `folder`, for `load`.

        The text stays where it is and is found again by its path; it is put into `folder` when it lies where
        it will not stay (`text_stays`), or when `with_text`.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        text = self.text_path
        if with_text or not self.text_stays:
            text = folder / TEXT_NAME
            with atomic_file(text) as copy:
                try:
                    os.link(self.text_path, copy)
                except OSError:  # another file system, or one without links
                    shutil.copy2(self.text_path, copy)
        write_lookups(folder, text, self.lookups)

    @property
    def sha256(self) -> str:
        """Of the bytes of the (uncompressed) text file."""
        return self.lookups.sha256

    def __len__(self) -> int:
        return self.lookups.documents

    def __getitem__(self, position: int) -> Document:
        index = operator.index(position)
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(f"document {position} of a corpus of {len(self)}")
        start, end = int(self.lookups.offsets[index]), int(self.lookups.offsets[index + 1])
        # pread moves no shared file position: threads need no lock.
        return self._parse(os.pread(self._file, end - start, start), index)

    def __iter__(self) -> Iterator[Document]:
        return (self[index] for index in range(len(self)))

    def by_id(self, key: str) -> Document | None:
        return next((document for document in self._candidates("ids", key) if document.id == key), None)

    def by_url(self, url: str) -> Document | None:
        """The first document with this url, compared letter by letter; None when there is none."""
        return next((document for document in self._candidates("urls", url) if document.url == url), None)

    def _candidates(self, table: Literal["ids", "urls"], key: str) -> Iterator[Document]:
        return (self[position] for position in find(getattr(self.lookups, table), key))

    def _parse(self, line: bytes, index: int) -> Document:
        try:
            return parse_document(line, index)
        except ValueError as error:
            raise CorpusError(f"corpus {self.text_path} changed while in use: document {index}: {error}") from None


def _index(path: Path, folder: Path, unpacked: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if unpacked:
        write_lookups(folder, path, scan(path, str(path)))
        return
    source = stamp(path)  # before reading: a change meanwhile is then seen the next time
    with atomic_file(folder / TEXT_NAME) as text:
        unpack(path, text)
        write_lookups(folder, folder / TEXT_NAME, scan(text, str(path)), source)
