"""From a key (an id, a url) to positions, for millions of keys, without a dictionary in memory."""

from __future__ import annotations

import hashlib
from array import array
from typing import Any

import numpy as np

Table = np.ndarray[Any, np.dtype[np.uint64]]
"""[2, keys] uint64: row 0 the keys' hashes, ascending; row 1 the positions. 16 bytes a key, fit to be mapped."""


class TableBuilder:
    """Collects keys in the order of their positions, then sorts them once."""

    def __init__(self) -> None:
        self._hashes = array("Q")
        self._positions = array("Q")

    def add(self, key: str, position: int) -> None:
        self._hashes.append(_hash(key))
        self._positions.append(position)

    def table(self) -> Table:
        hashes = np.array(self._hashes, dtype=np.uint64)
        # stable: keys that repeat keep the order of their positions
        order = np.argsort(hashes, kind="stable")
        return np.stack([hashes[order], np.array(self._positions, dtype=np.uint64)[order]])


def find(table: Table, key: str) -> list[int]:
    """Positions, ascending, whose key has this key's hash. Rarely other keys among them: the caller compares."""
    wanted = np.uint64(_hash(key))
    first = int(np.searchsorted(table[0], wanted, side="left"))
    last = int(np.searchsorted(table[0], wanted, side="right"))
    return [int(position) for position in table[1, first:last]]


def repeated(table: Table) -> list[list[int]]:
    """Groups of positions that share a hash: candidates for keys that are given twice."""
    starts = np.flatnonzero(table[0, 1:] == table[0, :-1])
    groups: dict[int, list[int]] = {}
    for start in starts.tolist():
        groups.setdefault(int(table[0, start]), [int(table[1, start])]).append(int(table[1, start + 1]))
    return list(groups.values())


def _hash(key: str) -> int:
    digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")
