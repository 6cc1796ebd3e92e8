"""Opening an index folder, whatever its kind. What a kind needs is imported when one is opened, torch above all."""

from __future__ import annotations

import logging
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mempo.errors import nearest
from mempo.retrieval.bm25 import Bm25Index as Bm25Index
from mempo.retrieval.corpus import Corpus
from mempo.retrieval.errors import IndexFolderError
from mempo.retrieval.index_folder import Sidecar, read_sidecar
from mempo.retrieval.memory_need import LOOKUP_BYTES, MemoryNeed, files_bytes, free_bytes
from mempo.retrieval.ranked import RankedIndex

if TYPE_CHECKING:
    from mempo.retrieval.encoder import Encoder

log = logging.getLogger(__name__)

KINDS = {
    "bm25": "mempo.retrieval.bm25:Bm25Index",
    "tantivy": "mempo.retrieval.tantivy:TantivyIndex",
    "dense": "mempo.retrieval.dense:DenseIndex",
    "hybrid": "mempo.retrieval.hybrid:HybridIndex",
}
WITH_VECTORS = ("dense", "hybrid")


def open_index(
    index_dir: str | Path,
    corpus: Corpus | None = None,
    *,
    encoder: Encoder | None = None,
    memory: Literal["map", "load"] = "map",
    force: bool = False,
) -> RankedIndex:
    """The index in a folder, by the kind its index.json names; safe to call from threads.

    Args:
        corpus: when the text it was made from has moved.
        encoder: of an index with vectors, when its weights have moved or are loaded already.
        memory: `map` reads what searches touch, `load` reads the FAISS file into memory first.
        force: load although it does not fit.

    Raises IndexFolderError (not an index, damaged, unknown kind, of another corpus, length or encoder), CorpusError,
    and UserError (the encoder cannot be loaded, a package is missing, not enough memory to `load`).
    """
    folder = Path(index_dir)
    kind = known_kind(folder, read_sidecar(folder)).kind
    module, _, name = KINDS[kind].partition(":")
    if kind not in WITH_VECTORS:
        return getattr(import_module(module), name).load(folder, corpus)
    need = memory_need(folder)
    if memory == "load":
        if not force:
            need.refuse_unless_fits("take memory=map, build a smaller factory (SQ8, IVF4096,PQ96), or force it")
    elif not need.fits:
        log.warning("%s: what does not fit is read from disk at every search", need.line())
    return getattr(import_module(module), name).load(folder, corpus, encoder, memory)


def known_kind(folder: Path, side: Sidecar) -> Sidecar:
    """The sidecar, when its kind is known; else IndexFolderError."""
    if side.kind not in KINDS:
        known = ", ".join(repr(name) for name in sorted(KINDS))
        hint = nearest(side.kind, KINDS)
        raise IndexFolderError(f"index {folder} is of unknown kind {side.kind!r}{hint}; known: {known}")
    return side


def memory_need(index_dir: str | Path) -> MemoryNeed:
    """What searching an index takes, against what is free. Nothing is loaded, torch neither."""
    folder = Path(index_dir)
    side = known_kind(folder, read_sidecar(folder))
    parts = {"look-ups": side.documents * LOOKUP_BYTES}
    for part, where in [(side, folder), *_inside(folder, side)]:
        if part.kind == "dense":
            parts |= _of_vectors(part)
        elif part.kind in ("bm25", "tantivy"):
            parts["words"] = files_bytes(where / part.kind)
    return MemoryNeed(f"index {folder}", parts, free_bytes())


def _inside(folder: Path, side: Sidecar) -> list[tuple[Sidecar, Path]]:
    if side.kind != "hybrid":
        return []
    return [(read_sidecar(folder / name), folder / name) for name in ("lexical", "dense")]


def _of_vectors(side: Sidecar) -> dict[str, int]:
    # Only the sidecar is read: neither FAISS nor torch is needed to say how large they are.
    file: Any = side.parameters.get("file")
    return {
        "vectors": int(file.get("bytes", 0)) if isinstance(file, dict) else 0,
        "encoder": int(side.parameters.get("weights_bytes", 0)),
    }
