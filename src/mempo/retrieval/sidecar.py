"""`index.json`: what an index folder says of itself, whatever its kind."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mempo.retrieval.corpus import Corpus
from mempo.retrieval.errors import IndexFolderError
from mempo.whole import whole_folder

NAME = "index.json"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Sidecar:
    """`kind` names the class that reads the folder; `parameters` are that kind's own (all that results depend on)."""

    kind: str
    documents: int
    corpus_sha256: str
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def refuse_unless(self, folder: Path, *, kind: str | None = None, corpus: Corpus | None = None) -> None:
        """Raises IndexFolderError when the index is of another kind, or was made from another corpus."""
        if kind is not None and self.kind != kind:
            raise IndexFolderError(f"index {folder} is of kind {self.kind!r}, not {kind!r}; open it with open_index")
        if corpus is None:
            return
        if self.documents != len(corpus):
            raise IndexFolderError(
                f"index {folder} holds {self.documents} documents, its corpus {corpus.text_path} {len(corpus)}; "
                "build the index again from this corpus"
            )
        if self.corpus_sha256 != corpus.sha256:
            raise IndexFolderError(
                f"index {folder} was made from a corpus with sha256 {self.corpus_sha256[:12]}, {corpus.text_path} has "
                f"{corpus.sha256[:12]} ({len(corpus)} documents in both); build the index again from this corpus"
            )


def write_sidecar(folder: Path, side: Sidecar) -> None:
    record = {
        "format": FORMAT,
        "kind": side.kind,
        "documents": side.documents,
        "corpus_sha256": side.corpus_sha256,
        "parameters": dict(side.parameters),
    }
    (folder / NAME).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def read_sidecar(folder: Path) -> Sidecar:
    """Raises IndexFolderError: no folder, no index in it, a damaged index.json, one of another format."""
    path = folder / NAME
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        what = "has no index.json" if folder.is_dir() else "is not a folder" if folder.exists() else "does not exist"
        raise IndexFolderError(f"{folder} is not an index: it {what}; build one from a corpus first") from None
    except (OSError, ValueError) as error:
        raise IndexFolderError(f"{path} cannot be read ({error}); build the index again") from None
    form = record.get("format") if isinstance(record, dict) else None
    if form != FORMAT:
        raise IndexFolderError(f"{path} has format {form!r}, this version reads format {FORMAT}; build the index again")
    kinds = {"kind": str, "documents": int, "corpus_sha256": str, "parameters": dict}
    wrong = [key for key, kind in kinds.items() if not isinstance(record.get(key), kind)]
    if wrong:
        raise IndexFolderError(f"{path} lacks {', '.join(wrong)}; build the index again")
    return Sidecar(**{key: record[key] for key in kinds})


@contextmanager
def new_index_folder(out_dir: Path, corpus: Corpus) -> Iterator[Path]:
    """Yields the folder to write an index into, the corpus's look-ups already there; see whole_folder.

    Raises IndexFolderError as `refuse_out_dir` does.
    """
    refuse_out_dir(out_dir)
    # Replacing an index must not take away the text that lies in it.
    inside = out_dir.resolve() in corpus.text_path.resolve().parents
    with whole_folder(out_dir) as folder:
        corpus.save(folder, with_text=inside)
        yield folder


def refuse_out_dir(out_dir: Path) -> None:
    """Raises IndexFolderError when `out_dir` holds something that is not an index, which is then left alone."""
    if out_dir.exists() and not out_dir.is_dir():
        raise IndexFolderError(f"{out_dir} is a file; name a folder for the index")
    if out_dir.is_dir() and not (out_dir / NAME).is_file() and any(out_dir.iterdir()):
        raise IndexFolderError(f"{out_dir} holds other files and no index; name a new or an empty folder")
