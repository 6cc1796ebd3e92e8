"""One rollout's walk through a maze: where it is, as a tool that answers `<move>`."""

from __future__ import annotations

from mempo.envs.maze.layout import DIRECTIONS
from mempo.envs.maze.maze import Maze
from mempo.envs.maze.telling import Rendering, Seen, told, wall
from mempo.rollout.interfaces import ToolErrorKind, ToolResult


class MoveTool:
    """Goes through a door and tells what is behind it. What it says is a notice, which is never cut."""

    name = "move"

    def __init__(self, maze: Maze, rendering: Rendering) -> None:
        self._maze = maze
        self._rendering: Rendering = rendering
        self._here = maze.start

    async def call(self, argument: str) -> ToolResult:
        direction = argument.strip().casefold()
        if direction not in DIRECTIONS:
            shown = " ".join(argument.split())[:40]
            notice = f"error: {shown!r} is no direction; move one of: {', '.join(DIRECTIONS)}"
            return ToolResult(notice=notice, error=ToolErrorKind.BAD_CALL)
        behind = self._maze.doors[self._here].get(direction)
        if behind is None:
            return ToolResult(notice=wall(direction, seen_at(self._maze, self._here), self._rendering))
        self._here = behind
        return ToolResult(notice=told(seen_at(self._maze, behind), self._rendering))


def seen_at(maze: Maze, cell: str) -> Seen:
    return Seen(cell, tuple(maze.doors[cell]), maze.word if cell == maze.goal else None)
