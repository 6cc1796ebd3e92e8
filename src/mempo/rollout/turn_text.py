"""A turn as text: what was written in it, its note, its thoughts."""

from __future__ import annotations

from collections.abc import Sequence

from mempo.rollout.protocol import scan
from mempo.rollout.tokenizer import Tokenizer
from mempo.rollout.trajectory import GenerationStop, Turn


def own_text(tokenizer: Tokenizer, own_ids: Sequence[int], stop: GenerationStop) -> str:
    """The text of a turn's own ids, without the token that ended it: what its spans index into."""
    ended = stop is GenerationStop.EOS and own_ids and own_ids[-1] in tokenizer.eos_ids
    return tokenizer.decode(own_ids[:-1] if ended else own_ids)


def note_text(turn: Turn, tokenizer: Tokenizer) -> str | None:
    """The inside of the turn's closed note; None without one."""
    note = turn.parsed.note
    return None if note is None else note.inner(own_text(tokenizer, turn.own_ids, turn.stop)).strip()


def thoughts(turn: Turn, tokenizer: Tokenizer) -> list[str]:
    text = own_text(tokenizer, turn.own_ids, turn.stop)
    return [e.inner(text).strip() for e in scan(text).elements if e.tag == "think" and e.depth == 0]
