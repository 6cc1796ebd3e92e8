"""Opening an index folder, whatever its kind."""

from __future__ import annotations

from pathlib import Path

from mempo.errors import nearest
from mempo.retrieval.bm25 import Bm25Index as Bm25Index
from mempo.retrieval.bm25 import Bm25Settings as Bm25Settings
from mempo.retrieval.corpus import Corpus
from mempo.retrieval.errors import IndexFolderError
from mempo.retrieval.sidecar import read_sidecar
from mempo.retrieval.types import Retriever

_LOADERS = {Bm25Index.KIND: Bm25Index.load}


def open_index(index_dir: str | Path, corpus: Corpus | None = None) -> Retriever:
    """The index in a folder, by the kind its index.json names; `corpus` when the text it was made from has moved.

    Raises IndexFolderError (not an index, damaged, unknown kind, made from another corpus) and CorpusError.
    """
    folder = Path(index_dir)
    kind = read_sidecar(folder).kind
    if kind not in _LOADERS:
        known = ", ".join(repr(name) for name in sorted(_LOADERS))
        raise IndexFolderError(f"index {folder} is of unknown kind {kind!r}{nearest(kind, _LOADERS)}; known: {known}")
    return _LOADERS[kind](folder, corpus)
