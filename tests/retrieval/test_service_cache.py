"""The cache against a list that does the same slowly."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mempo.retrieval.server.cache import LruCache

STEPS = st.lists(st.tuples(st.sampled_from("gp"), st.integers(0, 5), st.integers(0, 12)), max_size=60)


@given(STEPS)
def test_it_keeps_the_latest_that_fit(steps: list[tuple[str, int, int]]) -> None:
    cache: LruCache[int, int] = LruCache(10)
    kept: list[tuple[int, int]] = []  # key and size, which is the value too; the latest last
    for step, key, size in steps:
        if step == "g":
            entry = next((e for e in kept if e[0] == key), None)
            assert cache.get(key) == (entry[1] if entry else None)
            if entry:
                kept = [e for e in kept if e[0] != key] + [entry]
        elif size <= 10:
            kept = [e for e in kept if e[0] != key] + [(key, size)]
            while sum(e[1] for e in kept) > 10:
                kept.pop(0)
            cache.put(key, size, size)
        else:
            cache.put(key, size, size)
        assert len(cache) == len(kept)
        assert cache.bytes == sum(e[1] for e in kept)
