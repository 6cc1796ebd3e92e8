"""Vectors of a corpus on disk: made once for a corpus and an encoder, and gone on with after a kill."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mempo.config.retrieval import StoredAs
from mempo.errors import UserError
from mempo.retrieval.corpus import Corpus
from mempo.retrieval.encoder_folder import passage_text
from mempo.retrieval.errors import IndexFolderError
from mempo.storage.atomic import atomic_file, one_writer

if TYPE_CHECKING:
    from mempo.retrieval.encoder import Encoder

CHUNK_ROWS = 2048
SIDECAR = "embeddings.json"
VECTORS = "vectors.bin"


def default_cache() -> Path:
    """$MEMPO_CACHE, else the user's cache folder."""
    named = os.environ.get("MEMPO_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mempo"


def embed_corpus(
    corpus: Corpus,
    encoder: Encoder,
    cache: Path,
    stored_as: StoredAs = "float32",
    progress: Callable[[int, int], None] = lambda done, total: None,
    chunk_rows: int = CHUNK_ROWS,
) -> np.ndarray[Any, Any]:
    """Vectors [documents, dimension] of the passages, in the order of the corpus, mapped from `cache`.

    They lie in a folder named by a hash of corpus and encoder, so that others are never mixed in. Chunks of
    `chunk_rows` that are there are not made again; a kill costs one chunk. `progress` is told documents done and all.

    Raises UserError when the disk is too small, IndexFolderError when a vector is not finite.
    """
    key = _key(corpus, encoder, stored_as, chunk_rows)
    folder = embeddings_folder(cache, key)
    folder.mkdir(parents=True, exist_ok=True)
    with one_writer(folder / VECTORS):
        done = _done(folder, key)
        shape, vectors = (len(corpus), encoder.dimension), folder / VECTORS
        if done == 0:
            _make(vectors, shape, stored_as)
        mapped = np.memmap(vectors, dtype=stored_as, mode="r+", shape=shape)
        progress(done, len(corpus))
        for start in range(done, len(corpus), chunk_rows):
            stop = min(start + chunk_rows, len(corpus))
            mapped[start:stop] = _chunk(corpus, encoder, start, stop, stored_as)
            mapped.flush()  # before the count that says these rows are there
            _write(folder, key, stop)
            progress(stop, len(corpus))
    return np.memmap(vectors, dtype=stored_as, mode="r", shape=shape)


def embeddings_folder(cache: Path, key: Mapping[str, Any]) -> Path:
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    return cache / "embeddings" / digest[:24]


def forget_embeddings(corpus: Corpus, encoder: Encoder, cache: Path, stored_as: StoredAs = "float32") -> None:
    """Removes what `embed_corpus` made."""
    shutil.rmtree(embeddings_folder(cache, _key(corpus, encoder, stored_as, CHUNK_ROWS)), ignore_errors=True)


def _key(corpus: Corpus, encoder: Encoder, stored_as: str, chunk_rows: int) -> dict[str, Any]:
    return {
        "format": 1,
        "corpus_sha256": corpus.sha256,
        "documents": len(corpus),
        "encoder": dict(encoder.identity),
        "dimension": encoder.dimension,
        "stored_as": stored_as,
        "chunk_rows": chunk_rows,  # texts of a chunk are batched together, which shows in the last bits
    }


def _chunk(corpus: Corpus, encoder: Encoder, start: int, stop: int, stored_as: str) -> np.ndarray[Any, Any]:
    titles = encoder.identity.get("titles", "plain")
    vectors = encoder.passages([passage_text(corpus[place], titles) for place in range(start, stop)])
    if vectors.shape != (stop - start, encoder.dimension):
        raise IndexFolderError(
            f"the encoder gave vectors of shape {vectors.shape} for {stop - start} texts, not "
            f"({stop - start}, {encoder.dimension})"
        )
    vectors = vectors.astype(stored_as)
    broken = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(broken):
        document = corpus[start + int(broken[0])]
        raise IndexFolderError(
            f"the encoder gave a vector that is not finite for document {document.id!r} ({len(broken)} in this chunk "
            f"of {stop - start}); take dtype float32"
        )
    return vectors


def _make(vectors: Path, shape: tuple[int, int], stored_as: str) -> None:
    need = shape[0] * shape[1] * np.dtype(stored_as).itemsize
    vectors.unlink(missing_ok=True)
    free = shutil.disk_usage(vectors.parent).free
    if need > free:
        raise UserError(
            f"the vectors of {shape[0]} documents take {need / 2**30:.1f} GiB, {vectors.parent} has {free / 2**30:.1f} "
            "GiB free; name a larger disk (cache=…), or store them as float16 (dense.stored_as)"
        )
    with vectors.open("wb") as file:
        file.truncate(need)


def _done(folder: Path, key: Mapping[str, Any]) -> int:
    """How many rows are there, of these very vectors; 0 when anything is missing or does not fit."""
    try:
        side = json.loads((folder / SIDECAR).read_text("utf-8"))
        size = (folder / VECTORS).stat().st_size
        done = side["done"]
        fits = side["key"] == json.loads(json.dumps(key)) and 0 <= done <= key["documents"]
    except (OSError, ValueError, KeyError, TypeError):
        return 0
    rows_bytes = key["documents"] * key["dimension"] * np.dtype(key["stored_as"]).itemsize
    return done if fits and size == rows_bytes else 0


def _write(folder: Path, key: Mapping[str, Any], done: int) -> None:
    with atomic_file(folder / SIDECAR) as temporary:
        temporary.write_text(json.dumps({"key": dict(key), "done": done}, indent=2) + "\n", encoding="utf-8")
