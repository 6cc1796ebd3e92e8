"""How a maze is told in text, and how an expert reads it again.

| | `prose` | `cards` |
|---|---|---|
| question | You stand in the Hall of a maze; doors lead north and west. … | `Hall: north west` |
| after a move | You are in the Attic; doors lead east and south. | `Attic: east south` |
| a wall | There is no door south. You are in the Hall; … | `wall`, then the cell as above |
| at the goal | … On the wall stands the word amber. | `word: amber` on a second line |

The map is never told.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mempo.envs.maze.layout import DIRECTIONS

Rendering = Literal["prose", "cards"]
RENDERINGS = ("prose", "cards")

_TASK = (
    "Somewhere in this maze a word stands on a wall. Find it: move north, east, south or west through one door at a "
    "time, note which ways you have tried, and answer with the word."
)


@dataclass(frozen=True)
class Seen:
    """What can be read in a cell: its name, its doors, and the word where there is one."""

    cell: str
    doors: tuple[str, ...]
    word: str | None = None


def question_text(seen: Seen, rendering: Rendering) -> str:
    if rendering == "cards":
        return _card(seen)
    return f"You stand in the {seen.cell} of a maze; {_leading(seen.doors)}. {_TASK}"


def told(seen: Seen, rendering: Rendering) -> str:
    if rendering == "cards":
        return _card(seen) + (f"\nword: {seen.word}" if seen.word else "")
    word = f" On the wall stands the word {seen.word}." if seen.word else ""
    return f"You are in the {seen.cell}; {_leading(seen.doors)}.{word}"


def wall(direction: str, seen: Seen, rendering: Rendering) -> str:
    if rendering == "cards":
        return f"wall\n{told(seen, rendering)}"
    return f"There is no door {direction}. {told(seen, rendering)}"


def read(text: str) -> Seen | None:
    """What a told text says, in either rendering; None: it tells of no cell."""
    card = re.search(rf"^([^:\n]+): ({_DOORS}(?: {_DOORS})*)$", text, re.MULTILINE)
    prose = re.search(r"You (?:are|stand) in the (.+?)(?: of a maze)?; (?:doors lead|a door leads) ([a-z, ]+)\.", text)
    found = card or prose
    if found is None:
        return None
    word = re.search(r"^word: (.+)$" if card else r"stands the word (.+?)\.", text, re.MULTILINE)
    return Seen(found.group(1), tuple(re.findall(_DOORS, found.group(2))), word.group(1) if word else None)


_DOORS = f"(?:{'|'.join(DIRECTIONS)})"


def _card(seen: Seen) -> str:
    return f"{seen.cell}: {' '.join(seen.doors)}"


def _leading(doors: Sequence[str]) -> str:
    if len(doors) == 1:
        return f"a door leads {doors[0]}"
    return f"doors lead {', '.join(doors[:-1])} and {doors[-1]}"
