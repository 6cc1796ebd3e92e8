"""The expert of mazes: it goes depth first, and knows only what its context shows.

Its note has a line for the start and for every junction on its way: the directions that are left to try there, the
one it is trying first and the way back last. Coming back through the first, it strikes that off and tries the next;
what lay behind is done with, and its lines go. A cell that the note does not hold is a new cell: it goes on by the
first door that it did not come through, which in a corridor is right on the way back too.

In a maze with loops one may come into any cell again by another door, and must turn round there. So its note keeps a
line for every cell that it has been in.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from mempo.config.train import ExpertSettings
from mempo.envs.maze.layout import DIRECTIONS, OPPOSITE
from mempo.envs.maze.telling import Seen, read
from mempo.rollout.protocol import closing, opening
from mempo.rollout.question import Question

UNSURE = 4
_WORD = "word"
_STEP = re.compile(
    f"{opening('move')}(.*?){closing('move')}.*?{opening('tool_response')}(.*?){closing('tool_response')}", re.DOTALL
)

Plans = dict[str, list[str]]
"""By cell, what is left to try there."""


class MazeExpert:
    """The expert on one rollout. All it keeps to itself is which cells it will not note (`ExpertSettings.loss`)."""

    def __init__(
        self,
        question: Question,
        start: Seen,
        settings: ExpertSettings,
        rng: random.Random,
        notes: bool = True,
        loops: bool = True,
    ) -> None:
        self._keep = loops  # lines of every cell
        self._probe = question.probe
        self._start = start
        self._settings = settings
        self._rng = rng
        self._notes = notes
        self._loss = 0.0 if rng.random() < settings.lossless_share else settings.loss
        self._told: dict[str, bool] = {}  # whether a fact found so far is noted
        self._sure = False  # whether the last note tells the start direction
        self._thinning = random.Random(rng.random())

    def turn(self, seen: str) -> Sequence[tuple[str, str]]:
        note, told = self._parts(seen)
        first = list(self._start.doors)
        plans = self._plans(note) if note is not None else {self._start.cell: list(first)}
        here, way = self._start, first
        for direction, result in _STEP.findall(told):
            place = read(result)
            if place is not None:
                here, way = place, self._arrive(plans, place, OPPOSITE[direction.strip()])
        pairs = [("mem", self._note(plans, here.word))] if self._notes and seen else []
        s = self._settings
        if here.word is not None:
            return [*pairs, ("think", s.think_answer), ("answer", here.word)]
        thought = s.think_search.format(query=way[0], line=s.known.format(query=here.cell, found=" ".join(way)))
        return [*pairs, ("think", thought), ("move", way[0])]

    def allows(self) -> str | None:
        """The truth, always where the note tells it and else one time in `UNSURE`. Over many mazes that teaches both
        what a note says and how sure it can be; without the thinning nearly all samples would be about the latter."""
        return self._probe if self._sure or self._thinning.random() < 1 / UNSURE else None

    def _parts(self, seen: str) -> tuple[str | None, str]:
        """The last note, and what follows it."""
        before, tag, after = seen.rpartition(closing("mem"))
        if not (self._notes and tag):
            return None, seen
        return before.rpartition(opening("mem"))[2], after

    def _plans(self, note: str) -> Plans:
        """The lines of a note."""
        s = self._settings
        line = re.escape(s.known.format(query="\0", found="\1"))
        pattern = re.compile(line.replace("\0", "(.+?)").replace("\1", "(.+)"))
        lines = [found for part in note.split(s.separator) if (found := pattern.fullmatch(part.strip()))]
        told = {cell: text.split() for cell, text in (found.groups() for found in lines)}
        return {cell: way for cell, way in told.items() if cell != _WORD and way and set(way) <= set(DIRECTIONS)}

    def _note(self, plans: Plans, word: str | None) -> str:
        facts = [(cell, " ".join(way)) for cell, way in plans.items()] + ([(_WORD, word)] if word else [])
        for name, _ in facts:
            if name not in self._told:
                self._told[name] = self._rng.random() >= self._loss
        s = self._settings
        told = {name: text for name, text in facts if self._told[name]}
        self._sure = self._start.cell in told and (_WORD in told or len(plans[self._start.cell]) == 1)
        lines = [s.known.format(query=name, found=text) for name, text in told.items()]
        return s.separator.join(lines) or s.nothing

    def _arrive(self, plans: Plans, place: Seen, back: str) -> list[str]:
        """Bring the plans up to date on arrival, and say where to go from here: the first of what is returned."""
        known = plans.get(place.cell)
        if known is not None and known[0] != back:
            return [back]
        if known is not None and not self._keep:
            cells = list(plans)
            for cell in cells[cells.index(place.cell) + 1 :]:
                del plans[cell]
        way = (known or [])[1:] or [*(d for d in place.doors if d != back), back]
        if known is not None or self._keep or len(place.doors) > 2:
            plans[place.cell] = way
        return way
