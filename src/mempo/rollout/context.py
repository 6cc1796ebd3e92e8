"""What the policy sees next. Every context starts with the prompt of turn 1, `[system, question]`, unchanged.

| name | what follows the question |
|---|---|
| `full` | every turn with its tool result |
| `react` | the same; its agent's grammar forbids notes |
| `memory` | the last note, the last action, the last tool result; the thought is dropped |
| `last_turn` | the whole last turn and its tool result (MEM1) |
| `generations` | all turns of the policy's own, and the last tool result alone |
| `window(k)` | the last k turns with their tool results |

What exceeds the limit is cut inside passages, the oldest tool result first, and marked; the question never is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mempo.config.rollout import CONTEXTS, window_of
from mempo.errors import ConfigError, nearest
from mempo.rollout.interfaces import BuiltContext, Context
from mempo.rollout.render import Renderer
from mempo.rollout.trajectory import GenerationStop, Observation, Turn

Piece = tuple[int, ...] | Observation


def _own(turn: Turn) -> list[Piece]:
    return [turn.own_ids]


def _with_result(turn: Turn) -> list[Piece]:
    return [turn.own_ids, turn.observation] if turn.observation else [turn.own_ids]


class PiecewiseContext:
    """A context described by the pieces that follow the question."""

    def __init__(self, name: str, renderer: Renderer, pieces: Callable[[Sequence[Turn]], list[Piece]]) -> None:
        self.name = name
        self._renderer = renderer
        self._pieces = pieces

    def build(self, question_ids: Sequence[int], turns: Sequence[Turn], limit_tokens: int) -> BuiltContext:
        pieces = self._pieces(turns) if turns else []
        length = len(question_ids) + sum(len(piece) for piece in pieces)
        excess = length - limit_tokens
        for i, piece in enumerate(pieces):
            if excess > 0 and isinstance(piece, Observation):
                shorter = self._renderer.cut(piece, len(piece) - excess)
                excess -= len(piece) - len(shorter)
                pieces[i] = shorter
        ids = list(question_ids)
        for piece in pieces:
            ids += piece.ids if isinstance(piece, Observation) else piece
        return BuiltContext(tuple(ids), overflow=len(ids) > limit_tokens, cut_tokens=length - len(ids))


def full_pieces(turns: Sequence[Turn]) -> list[Piece]:
    return [piece for turn in turns for piece in _with_result(turn)]


def memory_pieces(turns: Sequence[Turn]) -> list[Piece]:
    """The last closed note stays in force until another is closed; a turn without a valid action shows none."""
    last = turns[-1]
    note = next((turn.note_ids for turn in reversed(turns) if turn.note_ids is not None), None)
    pieces: list[Piece] = [note] if note else []
    if last.action_ids:
        pieces.append(last.action_ids)
    if last.stop is GenerationStop.EOS:
        pieces.append(last.generated_ids[-1:])  # the reply closed itself, so the tool result does not close it again
    if last.observation:
        pieces.append(last.observation)
    return pieces


def generations_pieces(turns: Sequence[Turn]) -> list[Piece]:
    return [piece for turn in turns[:-1] for piece in _own(turn)] + _with_result(turns[-1])


_CONTEXTS: dict[str, Callable[[Sequence[Turn]], list[Piece]]] = {
    "full": full_pieces,
    "react": full_pieces,
    "memory": memory_pieces,
    "last_turn": lambda turns: _with_result(turns[-1]),
    "generations": generations_pieces,
}


def make_context(name: str, renderer: Renderer) -> Context:
    """A built-in context by name.

    Raises:
        ConfigError: unknown name, with the nearest known one.
    """
    k = window_of(name)
    if k is not None:
        return PiecewiseContext(name, renderer, lambda turns: full_pieces(turns[-k:]))
    if name not in _CONTEXTS:
        raise ConfigError(f"unknown context {name!r}{nearest(name, CONTEXTS)}; known: {', '.join(CONTEXTS)}")
    return PiecewiseContext(name, renderer, _CONTEXTS[name])
