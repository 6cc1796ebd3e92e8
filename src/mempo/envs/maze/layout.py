"""The shape of a maze: which cells of a grid there are and which have a door between them.

A layout is grown at random from one cell: a tree of doors, in which one way leads from any cell to any other, and then
`loops` further doors. Train and test share no layout, whatever the names, the start and the goal.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from typing import Literal

STEPS = {"north": (0, -1), "east": (1, 0), "south": (0, 1), "west": (-1, 0)}
DIRECTIONS = tuple(STEPS)
OPPOSITE = {"north": "south", "east": "west", "south": "north", "west": "east"}

MAX_STARTS = 200
"""Attempts to grow one layout."""

Cell = tuple[int, int]
"""Column and row, from the top left."""
Layout = Mapping[Cell, tuple[str, ...]]
"""The directions of the doors of every cell, in the order of `DIRECTIONS`."""
Split = Literal["train", "test"]


def beyond(cell: Cell, direction: str) -> Cell:
    dx, dy = STEPS[direction]
    return cell[0] + dx, cell[1] + dy


def grow(width: int, height: int, cells: int, loops: int, rng: random.Random, junctions: int | None = None) -> Layout:
    """A random layout of `cells` cells within `width` x `height`; it has fewer loops where no wall is left to open.

    `junctions`: at most so many cells with three doors or more, before there are loops. A maze that gets stuck under
    that limit is begun again.

    Raises:
        ValueError: it got stuck every time.
    """
    for _ in range(MAX_STARTS):
        layout = _grown(width, height, cells, loops, rng, junctions)
        if layout is not None:
            return layout
    raise ValueError(f"no maze of {cells} cells with {junctions} junctions grew in {width} x {height}")


def _grown(width: int, height: int, cells: int, loops: int, rng: random.Random, junctions: int | None) -> Layout | None:
    doors: dict[Cell, set[str]] = {(rng.randrange(width), rng.randrange(height)): set()}

    def walls(joining: bool) -> list[tuple[Cell, str]]:
        """Walls between a cell and another of the maze (`joining`), or one that is not in it yet."""
        found = [(cell, d, beyond(cell, d)) for cell in sorted(doors) for d in DIRECTIONS if d not in doors[cell]]
        inside = [(c, d) for c, d, (x, y) in found if 0 <= x < width and 0 <= y < height]
        wanted = [(c, d) for c, d in inside if (beyond(c, d) in doors) == joining]
        full = junctions is not None and sum(len(found) > 2 for found in doors.values()) >= junctions
        return [(c, d) for c, d in wanted if joining or not full or len(doors[c]) != 2]

    def open_one(joining: bool) -> None:
        cell, direction = rng.choice(walls(joining))
        doors[cell].add(direction)
        doors.setdefault(beyond(cell, direction), set()).add(OPPOSITE[direction])

    while len(doors) < cells:
        if not walls(joining=False):
            return None
        open_one(joining=False)
    for _ in range(loops):
        if walls(joining=True):
            open_one(joining=True)
    return {cell: tuple(d for d in DIRECTIONS if d in doors[cell]) for cell in sorted(doors)}


def split_of(layout: Layout, test_fraction: float) -> Split:
    """By a hash of the shape alone; where on the grid it lies does not matter."""
    left, top = min(x for x, _ in layout), min(y for _, y in layout)
    shape = sorted((x - left, y - top, *doors) for (x, y), doors in layout.items())
    digest = hashlib.sha256(f"maze split {shape}".encode()).digest()
    return "test" if int.from_bytes(digest[:8], "big") < test_fraction * 2**64 else "train"
