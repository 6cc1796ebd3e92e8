"""How a reply ended, and its whole text: servers remove the stop string, keep it, name it, or say nothing."""

from __future__ import annotations

from collections.abc import Sequence

from mempo.evaluate.openai_reply import ServerReply
from mempo.protocol import closing, scan
from mempo.trajectory import GenerationStop


def ending(reply: ServerReply, stops: Sequence[str], names_stops: bool) -> tuple[str, GenerationStop]:
    """The text with the stop string that ended it, and why it ended.

    In this order: a stop string that stands in the text (what follows it is dropped); the token limit, to which nothing
    is ever added; the stop string that the server names; where neither is told, the closing tag of the action that was
    opened last, if that is a stop string. Otherwise the model ended the reply itself.

    Args:
        stops: the stop strings that were asked for.
        names_stops: the server names the stop string whenever one ended a reply.
    """
    found = [(reply.text.find(stop) + len(stop)) for stop in stops if stop in reply.text]
    if found:
        return reply.text[: min(found)], GenerationStop.STOP_STRING
    if reply.finish_reason == "length":
        return reply.text, GenerationStop.LENGTH
    if reply.named_stop in stops:
        return reply.text + str(reply.named_stop), GenerationStop.STOP_STRING
    if reply.finish_reason is None or reply.stop_token is not None or names_stops:
        return reply.text, GenerationStop.EOS
    inferred = open_stop(reply.text, stops)
    if inferred is not None:
        return reply.text + inferred, GenerationStop.STOP_STRING
    return reply.text, GenerationStop.EOS


def open_stop(text: str, stops: Sequence[str]) -> str | None:
    """The stop string that closes the tag opened last, when that one is still open."""
    tags = tuple(stop[2:-1] for stop in stops if stop.startswith("</") and stop.endswith(">"))
    still_open = [element for element in scan(text, tags).elements if not element.closed]
    if not still_open:
        return None
    stop = closing(max(still_open, key=lambda element: element.start).tag)
    return stop if stop in stops else None
