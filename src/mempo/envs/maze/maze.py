"""A maze with names: what a rollout walks through, and what is true about it. The agent never sees it whole."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mempo.envs.maze.layout import DIRECTIONS, OPPOSITE, Layout, beyond


@dataclass(frozen=True)
class Maze:
    """`doors[cell][direction]` is the cell behind a door. `word` stands at the goal and is the answer."""

    doors: Mapping[str, Mapping[str, str]]
    start: str
    goal: str
    word: str

    def way(self) -> list[str]:
        """Directions of a shortest way from start to goal; of several, the one that turns north first, then east …"""
        to_goal = self._distances(self.goal)
        here, directions = self.start, []
        while here != self.goal:
            direction = next(d for d, cell in self.doors[here].items() if to_goal[cell] == to_goal[here] - 1)
            directions.append(direction)
            here = self.doors[here][direction]
        return directions

    @property
    def has_loops(self) -> bool:
        """More than one way leads somewhere."""
        return sum(map(len, self.doors.values())) // 2 >= len(self.doors)

    def _distances(self, origin: str) -> dict[str, int]:
        found, queue = {origin: 0}, deque([origin])
        while queue:
            cell = queue.popleft()
            for other in self.doors[cell].values():
                if other not in found:
                    found[other] = found[cell] + 1
                    queue.append(other)
        return found

    def plain(self) -> dict[str, Any]:
        """As data for `Question.meta`."""
        doors = {cell: dict(behind) for cell, behind in self.doors.items()}
        return {"doors": doors, "start": self.start, "goal": self.goal, "word": self.word}


def maze_of(data: Any) -> Maze:
    """The maze in `Question.meta["maze"]`, as `Maze.plain` wrote it or as anybody else did.

    Raises:
        ValueError: no maze, or one in which the goal cannot be reached.
    """
    try:
        doors = {
            str(cell): {d: str(behind[d]) for d in DIRECTIONS if d in behind} for cell, behind in data["doors"].items()
        }
        unknown = [d for behind in data["doors"].values() for d in behind if d not in DIRECTIONS]
        maze = Maze(doors, str(data["start"]), str(data["goal"]), str(data["word"]))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no maze with doors, start, goal and word ({type(error).__name__}: {error})") from error
    if unknown:
        raise ValueError(f"a door to {unknown[0]!r}, which is not one of {', '.join(DIRECTIONS)}")
    for cell, behind in doors.items():
        for direction, other in behind.items():
            if doors.get(other, {}).get(OPPOSITE[direction]) != cell:
                raise ValueError(f"the door {direction} of {cell} has no other side in {other}")
    if maze.start not in doors or maze.goal not in maze._distances(maze.start):
        raise ValueError(f"no way from {maze.start} to {maze.goal}")
    return maze


def furnish(layout: Layout, names: tuple[str, ...], words: tuple[str, ...], rng: random.Random) -> Maze:
    """Names for the cells, a start at a junction (one of the cells with the most doors), a goal at a dead end where
    there is one, and a word."""
    name = dict(zip(layout, rng.sample(names, len(layout)), strict=True))
    most = max(map(len, layout.values()))
    start = rng.choice([cell for cell, doors in layout.items() if len(doors) == most])
    others = [cell for cell in layout if cell != start]
    fewest = min(len(layout[cell]) for cell in others)
    goal = rng.choice([cell for cell in others if len(layout[cell]) == fewest])
    doors = {name[cell]: {d: name[beyond(cell, d)] for d in layout[cell]} for cell in layout}
    return Maze(doors, name[start], name[goal], rng.choice(words))
