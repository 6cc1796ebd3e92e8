"""`index.json`: what an index folder says of itself, whatever its kind."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter
from typing_extensions import TypedDict

from mempo.config.retrieval import BuildSettings
from mempo.retrieval import words
from mempo.retrieval.corpus import Corpus
from mempo.retrieval.corpus_files import refuse_short
from mempo.retrieval.errors import IndexFolderError
from mempo.storage.atomic import one_writer
from mempo.storage.outputs import output_folder, refuse_others
from mempo.storage.read_files import RECORD, DamagedFile, exists, read_json

NAME = "index.json"
_NAMES = (NAME, "corpus.json", "corpus.jsonl", "corpus.offsets.npy", "corpus.ids.npy", "corpus.urls.npy")
_NAMES += ("bm25", "tantivy", "lexical", "dense", "vectors.faiss")
"""What lies in an index folder, whatever its kind."""
FORMAT = 1
_REMEDY = "build the index again with --force"
T = TypeVar("T")
LEXICAL = ("bm25", "tantivy")
"""Kinds that keep the words of words.py."""


class _Record(TypedDict):
    kind: str
    documents: Annotated[int, Field(ge=0)]
    corpus_sha256: str
    parameters: dict[str, Any]


_RECORD = TypeAdapter(_Record)


@dataclass(frozen=True, slots=True)
class Sidecar:
    """`kind` names the class that reads the folder; `parameters` are that kind's own (all that results depend on)."""

    kind: str
    documents: int
    corpus_sha256: str
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def refuse_other_corpus(self, folder: Path, corpus: Corpus) -> None:
        """Raises IndexFolderError when the index was made from another corpus."""
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
    if not exists(path):
        what = "has no index.json" if folder.is_dir() else "is not a folder" if folder.exists() else "does not exist"
        raise IndexFolderError(f"{folder} is not an index: it {what}; build one from a corpus first")
    try:
        form = read_json(path, RECORD, _REMEDY).get("format")
        if form != FORMAT:
            raise IndexFolderError(
                f"{path} has format {form!r}, this version reads format {FORMAT}; build the index again"
            )
        record = read_json(path, _RECORD, _REMEDY)
    except DamagedFile as error:
        raise IndexFolderError(str(error)) from error
    return Sidecar(record["kind"], record["documents"], record["corpus_sha256"], record["parameters"])


def opened(index_dir: str | Path, kind: str, corpus: Corpus | None) -> tuple[Path, Sidecar, Corpus]:
    """The folder, what it says of itself, and its corpus; `corpus` when its text is elsewhere now.

    Raises IndexFolderError when the index is of another kind, or was made from another corpus or with other words.
    """
    folder = Path(index_dir)
    side = read_sidecar(folder)
    if side.kind != kind:
        raise IndexFolderError(f"index {folder} is of kind {side.kind!r}, not {kind!r}; open it with open_index")
    if kind in LEXICAL:
        words.refuse_other(side.parameters.get("tokeniser"), f"index {folder}")
    corpus = Corpus.load(folder) if corpus is None else corpus
    side.refuse_other_corpus(folder, corpus)
    return folder, side, corpus


def put(corpus: Corpus, out_dir: str | Path, write: Callable[[Path], None], load: Callable[[Path], T]) -> T:
    """Writes an index into `out_dir`, which is replaced when the index is whole, and loads it.

    Raises IndexFolderError when `out_dir` is something else than an index or an empty folder.
    """
    out_dir = Path(out_dir)
    with one_writer(out_dir):  # until it is loaded: another builder would replace files between two reads
        with new_index_folder(out_dir, corpus) as folder:
            write(folder)
        return load(out_dir)


@contextmanager
def new_index_folder(out_dir: Path, corpus: Corpus) -> Iterator[Path]:
    """Yields the folder to write an index into, the corpus's look-ups already there; files of others in `out_dir` stay
    there (see `mempo.storage.outputs`).

    Raises IndexFolderError as `refuse_out_dir` does.
    """
    refuse_out_dir(out_dir)
    # Replacing an index must not take away the text that lies in it.
    inside = out_dir.resolve() in corpus.text_path.resolve().parents
    with output_folder(out_dir, "index", "mempo index build", legacy=_of_earlier_release, alone=False) as folder:
        corpus.save(folder, with_text=inside)
        yield folder
        for array in folder.rglob("*.npy"):  # those of bm25s
            refuse_short(array)


def refuse_other_index(out_dir: Path, settings: BuildSettings, corpus: Corpus | None) -> None:
    """What a command refuses, unless it is forced: to replace an index of another kind, made with other settings or of
    another corpus (which may not be known yet), or one that is damaged; and a folder with files of others.

    Raises UserError.
    """
    refuse_others(out_dir, "index", None, legacy=_of_earlier_release)
    if not exists(out_dir / NAME):
        return
    side, instead = read_sidecar(out_dir), "name another folder, or --force replaces it"
    if side.kind != settings.kind:
        raise IndexFolderError(f"{out_dir} holds an index of kind {side.kind}, not {settings.kind}; {instead}")
    if changed := _changed(out_dir, side, settings):
        raise IndexFolderError(f"{out_dir} holds an index with other settings ({'; '.join(changed)}); {instead}")
    if corpus is not None and side.corpus_sha256 != corpus.sha256:
        raise IndexFolderError(
            f"{out_dir} holds an index of another corpus ({side.documents} documents, sha256 "
            f"{side.corpus_sha256[:12]}), not of {corpus.text_path} ({len(corpus)}, {corpus.sha256[:12]}); {instead}"
        )


def _changed(out_dir: Path, side: Sidecar, settings: BuildSettings) -> list[str]:
    """`key old → new` of the settings that say what an index holds. What it does not tell was made by an earlier
    release."""
    dense = settings.dense
    words = {"title_weight": settings.title_weight}
    vectors = {"factory": None}
    if settings.faiss_file is None:
        vectors = {"factory": dense.factory, "metric": dense.metric, "seed": dense.seed, "stored_as": dense.stored_as}
    wanted = {"dense": [(side, vectors)], "hybrid": [(side, words | {"lexical": settings.lexical})]}
    if side.kind == "hybrid":
        wanted["hybrid"].append((read_sidecar(out_dir / "dense"), vectors))
    return [
        f"{key} {part.parameters[key]!r} → {value!r}"
        for part, keys in wanted.get(side.kind, [(side, words)])
        for key, value in keys.items()
        if key in part.parameters and part.parameters[key] != value
    ]


def _of_earlier_release(out_dir: Path) -> list[str]:
    """The files of an index that kept no record of them."""
    if not (out_dir / NAME).is_file():
        return []
    files = (path.relative_to(out_dir) for path in out_dir.rglob("*") if not path.is_dir())
    return [path.as_posix() for path in files if path.parts[0] in _NAMES]


def refuse_out_dir(out_dir: Path) -> None:
    """Raises IndexFolderError when `out_dir` holds something that is not an index, which is then left alone."""
    if out_dir.exists() and not out_dir.is_dir():
        raise IndexFolderError(f"{out_dir} is a file; name a folder for the index")
    if out_dir.is_dir() and not (out_dir / NAME).is_file() and any(out_dir.iterdir()):
        raise IndexFolderError(f"{out_dir} holds other files and no index; name a new or an empty folder")
