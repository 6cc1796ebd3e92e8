"""Own context: `agent.context=examples.own_context:all_notes`. Every note, then the last action and its result."""

from __future__ import annotations

from collections.abc import Sequence

from mempo.rollout.context import Piece, PiecewiseContext, memory_pieces
from mempo.rollout.render import Renderer
from mempo.rollout.trajectory import Turn


def all_notes(renderer: Renderer) -> PiecewiseContext:
    """Called once with the renderer. Anything with a `name` and a `build` (the protocol `Context`) will do."""
    return PiecewiseContext("all_notes", renderer, pieces)


def pieces(turns: Sequence[Turn]) -> list[Piece]:
    """What follows the question, as ids and observations; these are cut inside their passages when room is short."""
    notes = [turn.note_ids for turn in turns if turn.note_ids is not None]
    return [*notes[:-1], *memory_pieces(turns)]  # the `memory` context begins with the last note
