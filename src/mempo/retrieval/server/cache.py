"""A least-recently-used cache that is bounded in bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LruCache(Generic[K, V]):
    """At most `max_bytes` of values, as the callers of `put` count them. To be used from one thread."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self.bytes = 0

    def get(self, key: K) -> V | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: K, value: V, size_bytes: int) -> None:
        """A value that is larger than the whole cache is not kept."""
        if size_bytes > self._max_bytes:
            return
        old = self._entries.pop(key, None)
        self.bytes += size_bytes - (old[1] if old else 0)
        self._entries[key] = value, size_bytes
        while self.bytes > self._max_bytes:
            _, (_, size) = self._entries.popitem(last=False)
            self.bytes -= size

    def __len__(self) -> int:
        return len(self._entries)
