"""What a server replied, whatever family it is of: text, why it ended, token ids, log-probs in either shape."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Api = Literal["completions", "chat"]
LogprobShape = Literal["legacy", "chat", "none"]

STOP_FIELDS = ("stop_reason", "matched_stop", "stopping_word")
"""Where servers name the stop string that ended a reply (vLLM, SGLang, llama.cpp), in the order they are believed."""

LENGTHS = frozenset({"length", "max_tokens", "max_output_tokens", "max_length", "model_length"})
"""How servers say that a reply was cut at its token limit; told here as `length`."""
FAILURES = frozenset({"abort", "aborted", "cancelled", "canceled", "error", "insufficient_system_resource", "timeout"})
"""Reasons to finish that only a server can have. Every other one (`content_filter`, `tool_calls`, one that we have not
heard of) ends a turn of the policy, which is scored."""


@dataclass(frozen=True)
class ServerReply:
    """One choice of a reply. Fields that the server did not send are None; a reply without text has the text "".

    `finish_reason` is in small letters, and `length` for every way to say that the limit cut the reply.
    `named_stop` is the stop string that ended it, `stop_token` says that a token did (`None`: not told).
    `token_texts` and `token_logprobs` `[tokens]` belong together; ids may be more, or fewer.
    """

    text: str
    finish_reason: str | None
    named_stop: str | None = None
    stop_field: str | None = None
    stop_token: int | None = None
    token_ids: tuple[int, ...] | None = None
    shape: LogprobShape = "none"
    token_texts: tuple[str, ...] = ()
    token_logprobs: tuple[float, ...] = ()
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


def read_reply(body: Mapping[str, Any], api: Api) -> ServerReply:
    """Read the only choice of a reply to one prompt.

    A reply that says nothing, because the model thought, refused, was filtered or called a function instead, is a turn
    without text and no failure: otherwise a policy could make itself not count.

    Raises:
        ValueError: another shape than the protocol's, or a reply that the server says it failed to give.
    """
    choices = body.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        found = f"{len(choices)} choices" if isinstance(choices, list) else "no choices"
        raise ValueError(f"the reply has {found}; one was asked for")
    choice = choices[0]
    finish = _finish_reason(choice)
    text = (_chat_text if api == "chat" else _completion_text)(choice, finish)
    shape, texts, values, entry_ids = _logprobs(choice.get("logprobs"))
    named, field, token = _stop_reason({**body, **choice})
    usage = body.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    return ServerReply(
        text=text,
        finish_reason=finish,
        named_stop=named,
        stop_field=field,
        stop_token=token,
        token_ids=_ids(choice.get("token_ids")) or entry_ids,
        shape=shape,
        token_texts=texts,
        token_logprobs=values,
        prompt_tokens=_count(usage.get("prompt_tokens")),
        completion_tokens=_count(usage.get("completion_tokens")),
    )


def _finish_reason(choice: Mapping[str, Any]) -> str | None:
    finish = choice.get("finish_reason")
    if choice.get("error") or not isinstance(finish, str | None) or (finish or "").lower() in FAILURES:
        raise ValueError(f"the reply was ended by {str(choice.get('error') or finish)[:60]!r}, not by the model")
    if finish is None:
        return None
    return "length" if finish.lower() in LENGTHS else finish.lower()


def _completion_text(choice: Mapping[str, Any], finish: str | None) -> str:
    text = choice.get("text")
    if text is None and ("text" in choice or (finish is not None and "message" not in choice)):
        return ""  # some servers leave out what is empty
    if not isinstance(text, str):
        raise ValueError(f"the choice has no text but {type(text).__name__}")
    return text


def _chat_text(choice: Mapping[str, Any], finish: str | None) -> str:
    """The content alone: what a server took out as reasoning was not written in our language."""
    message = choice.get("message")
    if message is None and ("message" in choice or (finish is not None and "text" not in choice)):
        return ""
    if not isinstance(message, dict):
        raise ValueError("the choice has no message")
    content = message.get("content")
    if isinstance(content, list | dict):
        return "".join(map(_part, content if isinstance(content, list) else [content]))
    if not isinstance(content, str | None):
        raise ValueError(f"the message has no text but {type(content).__name__}")
    return content or ""


def _part(part: Any) -> str:
    """The text of one part of a content; parts of other types, such as reasoning, have none."""
    if isinstance(part, dict):
        part = part.get("text") if part.get("type", "text") in ("text", "output_text") else ""
    if isinstance(part, dict):
        part = part.get("value")
    return part if isinstance(part, str) else ""


def _stop_reason(fields: Mapping[str, Any]) -> tuple[str | None, str | None, int | None]:
    for name in STOP_FIELDS:
        value = fields.get(name)
        if isinstance(value, str) and value:
            return value, name, None
        if isinstance(value, int) and not isinstance(value, bool):
            return None, name, value
    return None, None, None


def _logprobs(found: Any) -> tuple[LogprobShape, tuple[str, ...], tuple[float, ...], tuple[int, ...] | None]:
    """Both shapes: `{"tokens", "token_logprobs"}` and `{"content": [{"token", "logprob", "id"?}]}`. What is broken
    counts as none: log-probs are not worth a reply."""
    nothing: tuple[LogprobShape, tuple[str, ...], tuple[float, ...], None] = ("none", (), (), None)
    if not isinstance(found, dict):
        return nothing
    if isinstance(found.get("content"), list):
        entries = [entry if isinstance(entry, dict) else {} for entry in found["content"]]
        texts: Any = [e.get("token") for e in entries]
        values: Any = [e.get("logprob") for e in entries]
        shape, ids = "chat", _ids([e.get("id") for e in entries])
    else:
        texts, values = found.get("tokens"), found.get("token_logprobs")
        shape, ids = "legacy", None
    if not isinstance(texts, list) or not isinstance(values, list) or len(texts) != len(values) or not texts:
        return nothing
    if not all(isinstance(text, str) for text in texts) or not all(_is_logprob(value) for value in values):
        return nothing
    return shape, tuple(texts), tuple(map(float, values)), ids


def _is_logprob(value: Any) -> bool:
    # Sums of floats may end a little above 0; servers write -9999 or -inf for "impossible".
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value < 1e-3


def _ids(found: Any) -> tuple[int, ...] | None:
    if not isinstance(found, Sequence) or isinstance(found, str) or not found:
        return None
    return tuple(found) if all(type(i) is int and i >= 0 for i in found) else None


def _count(found: Any) -> int | None:
    return found if type(found) is int and found >= 0 else None
