"""Keys and values by token ids: what is found is what was stored, whatever was split, dropped or forgotten since."""

from __future__ import annotations

import random

import pytest
import torch

from mempo.engine.prefix_cache import RadixCache, Views, Whole, as_ids, common_length

LAYERS, HEADS, WIDTH = 2, 1, 3


def kv_of(ids: tuple[int, ...]) -> torch.Tensor:
    """Keys and values that tell the whole prefix they stand behind, as those of a model do."""
    values = [hash(ids[: n + 1]) % 1000 / 1000 for n in range(len(ids))]
    return torch.tensor(values)[None, None, None, :, None].expand(LAYERS, 2, HEADS, len(ids), WIDTH)


def stored(cache: RadixCache, ids: tuple[int, ...], length: int) -> torch.Tensor:
    out = torch.zeros(LAYERS, 2, HEADS, length, WIDTH)
    cache.fill(out, as_ids(ids), length)
    return out


def put(cache: RadixCache, ids: tuple[int, ...], start: int = 0, temporary: bool = False) -> None:
    cache.insert(as_ids(ids), Whole(kv_of(ids)[..., start:, :]), start, temporary)


def test_common_length() -> None:
    assert common_length(as_ids([1, 2, 3]), as_ids([1, 2, 4, 5])) == 2
    assert common_length(as_ids([1, 2]), as_ids([1, 2, 3])) == 2
    assert common_length(as_ids([]), as_ids([1])) == common_length(as_ids([2]), as_ids([1])) == 0


@pytest.mark.parametrize("seed", range(8))
def test_every_prefix_of_what_was_stored_is_found_exactly(seed: int) -> None:
    rng = random.Random(seed)
    cache, known = RadixCache(10**9), []
    for _ in range(30):
        beginning = rng.choice(known)[: rng.randint(0, 6)] if known and rng.random() < 0.7 else ()
        ids = (*beginning, *(rng.randrange(4) for _ in range(rng.randint(1, 6))))
        put(cache, ids, cache.match(as_ids(ids)) if rng.random() < 0.5 else 0)
        known.append(ids)
        asked = rng.choice(known)
        length = rng.randint(1, len(asked))
        assert cache.match(as_ids(asked)) == len(asked)
        assert torch.equal(stored(cache, asked, length), kv_of(asked)[..., :length, :])
    unknown = (9, 9)
    assert cache.match(as_ids(unknown)) == 0


def test_shared_beginnings_are_stored_once() -> None:
    cache = RadixCache(10**9)
    put(cache, (1, 2, 3, 4))
    one = cache.bytes
    put(cache, (1, 2, 3, 5))
    assert cache.bytes == one * 5 // 4


def test_what_stands_before_must_be_there() -> None:
    cache = RadixCache(10**9)
    put(cache, (1, 2, 3, 4), start=2)
    assert cache.match(as_ids((1, 2, 3, 4))) == 0
    with pytest.raises(KeyError, match="0 of 2 ids"):
        stored(cache, (1, 2), 2)


def test_other_weights_empty_the_cache() -> None:
    cache = RadixCache(10**9)
    cache.renew(0)
    put(cache, (1, 2))
    cache.renew(0)
    assert cache.match(as_ids((1, 2))) == 2
    cache.renew(1)
    assert (cache.match(as_ids((1, 2))), cache.bytes) == (0, 0)


def test_the_least_recently_used_ends_leave_first() -> None:
    cache = RadixCache(10**9)
    put(cache, (1, 2, 3))
    put(cache, (1, 2, 4))
    put(cache, (5, 6, 7))
    stored(cache, (1, 2, 3), 3)  # used again
    cache.budget_bytes = cache.bytes - 1
    cache.trim()
    assert cache.match(as_ids((1, 2, 4))) == 2
    assert cache.match(as_ids((1, 2, 3))) == cache.match(as_ids((5, 6, 7))) == 3
    cache.budget_bytes = 0
    cache.trim()
    assert cache.bytes == 0


def test_what_is_fleeting_is_gone_and_leaves_the_rest() -> None:
    cache = RadixCache(10**9)
    put(cache, (1, 2))
    before = cache.bytes
    put(cache, (1, 2, 3, 4), temporary=True)
    put(cache, (1, 2, 3, 5), temporary=True)
    put(cache, (6, 7), temporary=True)
    assert torch.equal(stored(cache, (1, 2, 3, 5), 4), kv_of((1, 2, 3, 5)))
    cache.drop_temporary()
    assert (cache.match(as_ids((1, 2, 3, 4))), cache.match(as_ids((6, 7))), cache.bytes) == (2, 0, before)


def test_a_copy_does_not_follow_its_source() -> None:
    cache, source = RadixCache(10**9), kv_of((1, 2)).clone()
    cache.insert(as_ids((1, 2)), Whole(source), 0)
    source.zero_()
    assert torch.equal(stored(cache, (1, 2), 2), kv_of((1, 2)))


@pytest.mark.parametrize("temporary", [False, True])
def test_what_lies_layer_by_layer_is_found_whole(temporary: bool) -> None:
    ids, kv = (1, 2, 3, 4, 5), kv_of((1, 2, 3, 4, 5))
    cache = RadixCache(10**9)
    cache.insert(as_ids(ids), Views([(layer[0], layer[1]) for layer in kv]), 0, temporary)
    put(cache, (1, 2, 9))  # cuts it in two
    assert torch.equal(stored(cache, ids, 5), kv)
    assert torch.equal(stored(cache, ids, 4), kv[..., :4, :])
    assert cache.bytes == 6 * kv[..., :1, :].numel() * kv.element_size()
