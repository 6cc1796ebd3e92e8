"""How a reply ended, and its whole text: servers remove the stop string, keep it, leave a piece of it, name it, or say
nothing."""

from __future__ import annotations

from collections.abc import Sequence

from mempo.engine.server.reply import ServerReply
from mempo.rollout.protocol import closing, scan
from mempo.rollout.trajectory import GenerationStop

_TELLING_CHARS = 3
"""A piece of a stop string as long as `</s` tells which one it was; `<` and `</` alone may be the model's own."""


def ending(
    reply: ServerReply, stops: Sequence[str], names_stops: bool, is_full: bool = False, eos_texts: Sequence[str] = ()
) -> tuple[str, GenerationStop]:
    """The text with the stop string that ended it, and why it ended.

    In this order: a stop string that stands in the text (what follows it is dropped); an end of sequence that is shown
    as text, which is dropped; the stop string that the server names, unless it says that the limit came first; the
    token limit, to which nothing is ever added; where neither is told, the closing tag of the action that was opened
    last, if that is a stop string. Otherwise the model ended the reply itself.

    Args:
        stops: the stop strings that were asked for.
        names_stops: the server names the stop string whenever one ended a reply.
        is_full: the reply has as many tokens as it may have, so that the limit ended it, whatever the server calls it.
        eos_texts: end-of-sequence tokens as text.
    """
    text = reply.text
    found = [(text.find(stop) + len(stop)) for stop in stops if stop in text]
    if found:
        return text[: min(found)], GenerationStop.STOP_STRING
    for eos in eos_texts:
        if text.endswith(eos):
            return text.removesuffix(eos), GenerationStop.EOS
    if reply.finish_reason == "length":
        return text, GenerationStop.LENGTH
    if reply.named_stop in stops:
        return completed(text, str(reply.named_stop)), GenerationStop.STOP_STRING
    if reply.stop_token is not None:
        return text, GenerationStop.EOS
    if is_full:
        return text, GenerationStop.LENGTH
    if reply.finish_reason != "stop" or names_stops:
        return text, GenerationStop.EOS
    inferred = inferred_stop(text, stops)
    if inferred is not None:
        return completed(text, inferred), GenerationStop.STOP_STRING
    return text, GenerationStop.EOS


def inferred_stop(text: str, stops: Sequence[str]) -> str | None:
    """The stop string that a reply must have ended with: the one of which a telling piece is left, else the one that
    closes the tag opened last, when that one is still open."""
    left = [stop for stop in stops if len(piece_of(stop, text)) >= _TELLING_CHARS]
    inferred = open_stop(text, stops)
    return inferred if inferred in left or not left else left[0]


def open_stop(text: str, stops: Sequence[str]) -> str | None:
    """The stop string that closes the tag opened last, when that one is still open."""
    tags = tuple(stop[2:-1] for stop in stops if stop.startswith("</") and stop.endswith(">"))
    still_open = [element for element in scan(text, tags).elements if not element.closed]
    if not still_open:
        return None
    stop = closing(max(still_open, key=lambda element: element.start).tag)
    return stop if stop in stops else None


def piece_of(stop: str, text: str) -> str:
    """The longest beginning of the stop string that ends the text."""
    return next((stop[:n] for n in range(len(stop) - 1, 0, -1) if text.endswith(stop[:n])), "")


def completed(text: str, stop: str) -> str:
    """The text with the whole stop string behind it, of which the server may have left a piece."""
    return text.removesuffix(piece_of(stop, text)) + stop
