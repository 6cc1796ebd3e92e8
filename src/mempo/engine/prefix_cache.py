"""Keys and values of token sequences seen before, found by their ids: a radix tree.

A node holds a run of ids and their keys and values; the path from the root to it is the sequence they stand behind. A
question asked of sixteen rollouts is one node, and a prompt that grows from turn to turn adds a node a turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

Ids = np.ndarray  # int64 `[tokens]`


def as_ids(ids: object) -> Ids:
    return np.asarray(ids, dtype=np.int64)


def common_length(a: Ids, b: Ids) -> int:
    """How many ids two sequences share from their beginning."""
    n = min(len(a), len(b))
    differs = np.flatnonzero(a[:n] != b[:n])
    return int(differs[0]) if len(differs) else n


@dataclass(frozen=True)
class Views:
    """Keys and values of a run of tokens where they lie, layer by layer: `(keys, values)`, `[heads, tokens, width]`
    each. Putting them together waits until they are copied to where they are used."""

    layers: Sequence[tuple[torch.Tensor, torch.Tensor]]

    def part(self, start: int, stop: int | None = None) -> Views:
        return Views([(keys[:, start:stop], values[:, start:stop]) for keys, values in self.layers])

    def copy_into(self, out: torch.Tensor) -> None:
        """`out` `[layers, 2, heads, tokens, width]`."""
        for number, (keys, values) in enumerate(self.layers):
            out[number, 0] = keys
            out[number, 1] = values

    def clone(self) -> Whole:
        return Whole(torch.stack([torch.stack(layer) for layer in self.layers]))

    @property
    def bytes(self) -> int:
        return sum(keys.numel() * keys.element_size() * 2 for keys, _ in self.layers)


@dataclass(frozen=True)
class Whole:
    """The same in one tensor `[layers, 2, heads, tokens, width]`."""

    kv: torch.Tensor

    def part(self, start: int, stop: int | None = None) -> Whole:
        return Whole(self.kv[..., start:stop, :])

    def copy_into(self, out: torch.Tensor) -> None:
        out.copy_(self.kv)

    def clone(self) -> Whole:
        return Whole(self.kv.clone())

    @property
    def bytes(self) -> int:
        return self.kv.numel() * self.kv.element_size()


Kept = Views | Whole


class _Node:
    __slots__ = ("children", "ids", "kv", "parent", "temporary", "used")

    def __init__(self, ids: Ids, kv: Kept | None, parent: _Node | None, used: int, temporary: bool) -> None:
        self.ids, self.kv, self.parent, self.used, self.temporary = ids, kv, parent, used, temporary
        self.children: dict[int, _Node] = {}


class RadixCache:
    """Keys and values by token ids, the least recently used leaves leaving first.

    What is stored belongs to one version of the weights; `renew` empties the cache when another comes.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.bytes = 0
        self._root = _Node(as_ids(()), None, None, 0, False)
        self._clock = 0
        self._version: object = None

    def renew(self, version: object) -> None:
        """Forget everything unless it was computed by these very weights."""
        if version != self._version:
            self.clear()
            self._version = version

    def clear(self) -> None:
        self._root.children.clear()
        self.bytes = 0

    def match(self, ids: Ids) -> int:
        """How many ids from the beginning are stored."""
        return sum(used for _, used in self._path(ids))

    def fill(self, out: torch.Tensor, ids: Ids, length: int) -> None:
        """Copy keys and values of the first `length` ids into `out` `[layers, 2, heads, length, width]`.

        Raises:
            KeyError: not all of them are stored.
        """
        at = 0
        self._clock += 1
        for node, used in self._path(ids[:length]):
            assert node.kv is not None
            node.used = self._clock
            node.kv.part(0, used).copy_into(out[..., at : at + used, :])
            at += used
        if at < length:
            raise KeyError(f"{at} of {length} ids are stored")

    def insert(self, ids: Ids, kv: Kept, start: int, temporary: bool = False) -> None:
        """Store `kv` of `ids[start:]`; what stands before must be stored already, else nothing is.

        They are copied, so that a view does not keep a whole batch alive. What is `temporary` is a view, and gone
        with the next `drop_temporary`.
        """
        self._clock += 1
        path = list(self._path(ids))
        known = sum(used for _, used in path)
        if known < start or known == len(ids):
            return
        node, used = path[-1] if path else (self._root, 0)
        if used < len(node.ids):
            node = self._split(node, used)
        own = kv.part(known - start)
        fresh = _Node(ids[known:].copy(), own if temporary else own.clone(), node, self._clock, temporary)
        node.children[int(ids[known])] = fresh
        self.bytes += _size(fresh)

    def drop_temporary(self) -> None:
        """What hangs on a temporary node is temporary too, so whole branches go."""
        waiting = [self._root]
        while waiting:
            node = waiting.pop()
            for first, child in list(node.children.items()):
                if child.temporary:
                    self.bytes -= sum(_size(gone) for gone in self._nodes(child))
                    del node.children[first]
                else:
                    waiting.append(child)

    def trim(self) -> None:
        """Drop the least recently used ends of sequences until the budget holds."""
        while self.bytes > self.budget_bytes:
            leaves = sorted((node for node in self._nodes() if not node.children), key=lambda node: node.used)
            for leaf in leaves:
                assert leaf.parent is not None
                del leaf.parent.children[int(leaf.ids[0])]
                self.bytes -= _size(leaf)
                if self.bytes <= self.budget_bytes:
                    break

    def _path(self, ids: Ids) -> Iterator[tuple[_Node, int]]:
        """The nodes that `ids` runs through, each with how many of its ids it takes."""
        node, at = self._root, 0
        while at < len(ids) and (child := node.children.get(int(ids[at]))) is not None:
            used = common_length(child.ids, ids[at:])
            yield child, used
            if used < len(child.ids):
                return
            node, at = child, at + used

    def _split(self, node: _Node, at: int) -> _Node:
        """Cut a node in two behind its first `at` ids; returns the first half."""
        assert node.kv is not None
        assert node.parent is not None
        halves: tuple[Kept, Kept] = node.kv.part(0, at), node.kv.part(at)
        if not node.temporary:  # else one half would keep the memory of both
            halves = halves[0].clone(), halves[1].clone()
        head = _Node(node.ids[:at], halves[0], node.parent, node.used, node.temporary)
        node.parent.children[int(node.ids[0])] = head
        node.ids, node.kv, node.parent = node.ids[at:], halves[1], head
        head.children[int(node.ids[0])] = node
        return head

    def _nodes(self, top: _Node | None = None) -> Iterator[_Node]:
        """Every node below the root, or `top` and what hangs on it."""
        waiting = list(self._root.children.values()) if top is None else [top]
        while waiting:
            node = waiting.pop()
            waiting += node.children.values()
            yield node


def _size(node: _Node) -> int:
    return 0 if node.kv is None else node.kv.bytes
