"""What a replica of the retrieval service needs in memory, and how fast it may be, by kind of index.

Sizes follow FAISS's layouts (docs/retrieval.md has them for wiki-18). Speeds are estimates from what one search reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

LISTS = 16_384
NPROBE = 128
_SCAN_GB_S = 10.0
"""What one core reads of vectors in a second."""
_MEMORY_GB_S = 100.0
"""What all cores of a replica read together."""
_BATCH = 64
"""Queries that the service asks the index at once; Flat and SQ read their vectors once for all of them."""
_GRAPH_S = 0.005
"""A search of an HNSW graph on one core."""
_ENCODER_S = 0.04
"""Encoding a query with a base-sized encoder on one core."""


@dataclass(frozen=True)
class IndexKind:
    """`vector_bytes(dimension)`: of one document. `fixed_bytes(dimension)`: of the whole. `reads`: share of the vectors
    that a search reads; None: a walk in a graph."""

    vector_bytes: Callable[[int], int]
    reads: float | None
    fixed_bytes: Callable[[int], int] = lambda dimension: 0


def _centroids(dimension: int) -> int:
    return 4 * LISTS * dimension


INDEXES: dict[str, IndexKind] = {
    "Flat": IndexKind(lambda d: 4 * d, 1.0),
    "SQfp16": IndexKind(lambda d: 2 * d, 1.0),
    "SQ8": IndexKind(lambda d: d, 1.0),
    "HNSW32,SQ8": IndexKind(lambda d: d + 272, None),
    "HNSW64": IndexKind(lambda d: 4 * d + 528, None),
    "IVF16384,SQ8": IndexKind(lambda d: d + 8, NPROBE / LISTS, _centroids),
    "IVF16384,PQ192": IndexKind(lambda d: 192 + 8, NPROBE / LISTS, lambda d: _centroids(d) + 4 * 256 * d),
    "IVF16384,PQ96": IndexKind(lambda d: 96 + 8, NPROBE / LISTS, lambda d: _centroids(d) + 4 * 256 * d),
}


def index_bytes(kind: str, documents: int, dimension: int) -> int:
    """Memory of the vectors of one replica, look-ups and text left out: those are mapped."""
    found = INDEXES[kind]
    return documents * found.vector_bytes(dimension) + found.fixed_bytes(dimension)


def queries_per_s(kind: str, documents: int, dimension: int, cores: int) -> float:
    """An estimate for one replica that does nothing else, encoding on its cores included."""
    return 1 / (_search_s(kind, documents, dimension, cores) + _ENCODER_S / cores)


def _search_s(kind: str, documents: int, dimension: int, cores: int) -> float:
    """Of the whole replica for one query among many."""
    reads = INDEXES[kind].reads
    if reads is None:
        return _GRAPH_S / cores
    read_gb = reads * documents * INDEXES[kind].vector_bytes(dimension) / 1e9
    if reads < 1:
        return read_gb / (cores * _SCAN_GB_S)
    return read_gb / (min(_MEMORY_GB_S, cores * _SCAN_GB_S) * _BATCH)
