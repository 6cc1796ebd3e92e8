"""Mazes: an environment to act in, seen one cell at a time.

    environment = MazeEnvironment(width=4, height=3, loops=1)
    (question,) = environment.questions("train", 1)     # You stand in the Hall of a maze; doors lead north and west. …
    tools = environment.episode(question)               # {"move": …}, with a place of its own in the maze

`layout.py` grows shapes and splits them, `maze.py` gives them names, a start and a goal, `telling.py` puts them into
text, `walk.py` is the tool of a rollout, `explorer.py` the expert, `environment.py` brings them together. No
torch anywhere.
"""

from mempo.envs.maze.environment import MazeEnvironment, MazeError, Probe, write
from mempo.envs.maze.explorer import MazeExpert
from mempo.envs.maze.layout import DIRECTIONS, OPPOSITE, grow, split_of
from mempo.envs.maze.maze import Maze, maze_of
from mempo.envs.maze.telling import Rendering, Seen
from mempo.envs.maze.walk import MoveTool

__all__ = [
    "DIRECTIONS",
    "OPPOSITE",
    "Maze",
    "MazeEnvironment",
    "MazeError",
    "MazeExpert",
    "MoveTool",
    "Probe",
    "Rendering",
    "Seen",
    "grow",
    "maze_of",
    "split_of",
    "write",
]
