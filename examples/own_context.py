"""Own context: `agent.context=examples.own_context:all_notes`. Every note so far, then the last action and its result."""

from __future__ import annotations

from collections.abc import Sequence

from mempo.context import Piece, PiecewiseContext
from mempo.render import Renderer
from mempo.trajectory import Turn


def all_notes(renderer: Renderer) -> PiecewiseContext:
    """Called once with the renderer. Anything with a `name` and a `build` (`mempo.interfaces.Context`) will do."""
    return PiecewiseContext("all_notes", renderer, pieces)


def pieces(turns: Sequence[Turn]) -> list[Piece]:
    """What follows the question, as ids and observations; these are cut inside their passages when room is short."""
    found: list[Piece] = [turn.note_ids for turn in turns if turn.note_ids is not None]
    last = turns[-1]
    if last.action_ids is not None:
        found.append(last.action_ids)
    if last.observation is not None:
        found.append(last.observation)
    return found
