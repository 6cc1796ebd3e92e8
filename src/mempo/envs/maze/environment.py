"""The mazes as an `Environment` to act in, and as the files that `mempo environment maze` writes."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mempo.config.train import ExpertSettings
from mempo.envs.made_by import made_by_environment
from mempo.envs.maze.explorer import MazeExpert
from mempo.envs.maze.layout import DIRECTIONS, Layout, grow, split_of
from mempo.envs.maze.maze import Maze, furnish, maze_of
from mempo.envs.maze.names import ROOMS, WORDS
from mempo.envs.maze.telling import RENDERINGS, Rendering, Seen, question_text
from mempo.envs.maze.walk import MoveTool, seen_at
from mempo.errors import UserError
from mempo.rollout.interfaces import DocumentLike, Tool
from mempo.rollout.question import Question
from mempo.storage.outputs import output_files

MAX_TRIES = 1000
"""Layouts drawn for one maze before a split counts as empty."""

Probe = Literal["start_direction", "path"]
PROBES = ("start_direction", "path")


class MazeError(UserError):
    """Options or questions that no maze can have."""


@dataclass(frozen=True)
class MazeEnvironment:
    """Mazes on a grid, seen one cell at a time. A word at the goal is the answer.

    Raises:
        MazeError: options that no maze can have.
    """

    name = "maze"  # not a field: all of them have it
    actions = ("move",)

    width: int = 4
    height: int = 3
    cells: int | None = None
    """How many cells of the grid a maze has; None: all."""
    loops: int = 1
    """Doors beyond those of a tree. With none, a hand on the wall leads to the goal, and nothing need be remembered."""
    junctions: int | None = None
    """At most so many cells with three doors or more (before loops); None: any. With 1 the start alone has a choice."""
    rendering: Rendering = "prose"
    probe: Probe = "start_direction"
    """What a note is asked to predict: the `start_direction` of the shortest way to the goal, or the whole `path`."""
    test_fraction: float = 0.2
    """Share of the layouts that are held out for testing."""

    def __post_init__(self) -> None:
        for key, least in (("width", 1), ("height", 1), ("cells", 2), ("loops", 0), ("junctions", 0)):
            value = getattr(self, key)
            if not (key in ("cells", "junctions") and value is None) and (type(value) is not int or value < least):
                raise MazeError(f"maze: {key} is {value!r}; give a whole number from {least}")
        most = min(self.width * self.height, len(ROOMS))
        if not 2 <= self.size <= most:
            raise MazeError(
                f"maze: {self.size} cells in a grid of {self.width} x {self.height}; give 2 to {most} cells "
                f"(there are {len(ROOMS)} names)"
            )
        for key, value, known in (("rendering", self.rendering, RENDERINGS), ("probe", self.probe, PROBES)):
            if value not in known:
                raise MazeError(f"maze: {key} is {value!r}; choose {' or '.join(known)}")
        fraction = self.test_fraction
        if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 < fraction < 1:
            raise MazeError(f"maze: test_fraction is {fraction!r}; give a number between 0 and 1")

    @property
    def size(self) -> int:
        return self.width * self.height if self.cells is None else self.cells

    def documents(self) -> Sequence[DocumentLike]:
        """None: there is nothing to search."""
        return ()

    def questions(self, split: str, count: int, objectives: int = 1, seed: int = 0) -> list[Question]:
        """`count` mazes whose layouts are of this split.

        Raises:
            MazeError: another split, several objectives, or options so narrow that the split has no layout.
        """
        if split not in ("train", "test"):
            raise MazeError(f"the maze has no split {split!r}; choose train or test")
        if objectives != 1:
            raise MazeError(f"a maze has 1 objective, not {objectives}; set data.objectives=[1]")
        rng = random.Random(f"maze {split} {seed}")
        return [self._question(f"maze-{split}-{seed}-{n}", self._layout(split, rng), rng) for n in range(count)]

    def _layout(self, split: str, rng: random.Random) -> Layout:
        for _ in range(MAX_TRIES):
            try:
                layout = grow(self.width, self.height, self.size, self.loops, rng, self.junctions)
            except ValueError as error:
                raise MazeError(f"maze: {error}; give fewer cells, more junctions or a larger grid") from error
            if split_of(layout, self.test_fraction) == split:
                return layout
        raise MazeError(
            f"maze: none of {MAX_TRIES} layouts of {self.size} cells in {self.width} x {self.height} is in the split "
            f"{split}; make the grid larger, or change test_fraction ({self.test_fraction:g})"
        )

    def _question(self, name: str, layout: Layout, rng: random.Random) -> Question:
        maze = furnish(layout, ROOMS, WORDS, rng)
        way = maze.way()
        probe = way[0] if self.probe == "start_direction" else " ".join(way)
        text = question_text(seen_at(maze, maze.start), self.rendering)
        return Question(name, text, maze.word, probe, {"maze": maze.plain()})

    def episode(self, question: Question) -> Mapping[str, Tool]:
        return {"move": MoveTool(_maze(question), self.rendering)}

    def expert(
        self, question: Question, settings: ExpertSettings, rng: random.Random, notes: bool = True
    ) -> MazeExpert:
        maze = _maze(question)
        start = Seen(maze.start, tuple(maze.doors[maze.start]))
        return MazeExpert(question, start, settings, rng, notes, maze.has_loops)

    def texts(self) -> list[str]:
        """Every name, every word, and every list of directions that a note or a cell may hold."""
        ways = [[]]
        for way in ways:
            ways += [[*way, d] for d in DIRECTIONS if d not in way]
        return [*ROOMS, *WORDS, "word", "wall", *(" ".join(way) for way in ways if way)]


def _maze(question: Question) -> Maze:
    """The maze of a question.

    Raises:
        MazeError: the question brings none, or one that nobody can walk through.
    """
    try:
        return maze_of(question.meta.get("maze"))
    except ValueError as error:
        raise MazeError(f"question {question.id}: meta.maze holds {error}") from error


def write(
    out_dir: Path | str,
    environment: MazeEnvironment,
    *,
    train: int = 2000,
    test: int = 200,
    seed: int = 0,
    force: bool = False,
) -> dict[str, int]:
    """Write `train.jsonl` and `test.jsonl`, rows `{"id", "question", "answer", "probe", "meta"}`; returns the number of
    lines of each. What is there already is treated as `mempo.storage.outputs` says.

    Raises:
        MazeError: as `MazeEnvironment.questions`; UserError: files that may not be written over. Nothing is written
            then.
    """
    rows: dict[str, list[dict[str, Any]]] = {}
    for split, count in (("train", train), ("test", test)):
        made = environment.questions(split, count, 1, seed)
        rows[f"{split}.jsonl"] = [
            {"id": q.id, "question": q.text, "answer": q.gold, "probe": q.probe, "meta": dict(q.meta)} for q in made
        ]
    made_by = made_by_environment("maze", environment, train, test, 1, seed)
    with output_files(Path(out_dir), "environment", made_by, force, replaces=True) as folder:
        for name, lines in rows.items():
            text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
            (folder / name).write_text(text, encoding="utf-8", newline="\n")
    return {name: len(lines) for name, lines in rows.items()}
