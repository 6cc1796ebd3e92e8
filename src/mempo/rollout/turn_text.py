"""A turn as text, decoded from the ids that are its truth."""

from __future__ import annotations

from mempo.rollout.tokenizer import Tokenizer
from mempo.rollout.trajectory import GenerationStop, Turn


def own_text(turn: Turn, tokenizer: Tokenizer) -> str:
    """What the turn wrote, without the token that ended it; the spans of `turn.parsed` are places in this text."""
    ids = turn.own_ids
    ended = turn.stop is GenerationStop.EOS and ids and ids[-1] in tokenizer.eos_ids
    return tokenizer.decode(ids[:-1] if ended else ids)


def note_text(turn: Turn, tokenizer: Tokenizer) -> str | None:
    """The inside of the turn's closed note; None without one."""
    note = turn.parsed.note
    return None if note is None else note.inner(own_text(turn, tokenizer)).strip()
