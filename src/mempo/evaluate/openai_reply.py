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

ENDS = ("stop", "length")
"""Reasons to finish that leave a reply to be read. Others (`content_filter`, `tool_calls`, `abort`) leave none."""


@dataclass(frozen=True)
class ServerReply:
    """One choice of a reply. Fields that the server did not send are None.

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

    Raises:
        ValueError: another shape than the protocol's, or a reply that was ended by something else than the model, a
            stop string or its length.
    """
    choices = body.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        found = f"{len(choices)} choices" if isinstance(choices, list) else "no choices"
        raise ValueError(f"the reply has {found}; one was asked for")
    choice = choices[0]
    text = _chat_text(choice) if api == "chat" else choice.get("text")
    finish = choice.get("finish_reason")
    if finish is not None and finish not in ENDS:
        raise ValueError(f"the reply was ended by {str(finish)[:60]!r}, not by the model, a stop string or its length")
    if not isinstance(text, str):
        raise ValueError(f"the choice has no text but {type(text).__name__}")
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


def _chat_text(choice: Mapping[str, Any]) -> Any:
    """The content alone: what a server took out as reasoning was not written in our language."""
    message = choice.get("message")
    if not isinstance(message, dict):
        raise ValueError("the choice has no message")
    content = message.get("content")
    # A reasoning model that used up its tokens has no content yet.
    return "" if content is None and choice.get("finish_reason") == "length" else content


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
