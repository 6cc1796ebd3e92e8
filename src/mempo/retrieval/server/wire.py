"""The bytes of the `/retrieve` and `/access` convention: requests read, replies written.

Bodies are read by hand and not by models: a hostile string (a lone surrogate) must come to an answer, not to a failure
of the error message about it. Rows are turned into bytes once, where they are found, and copied from there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mempo.config.retrieval import ServiceSettings
from mempo.retrieval.document import Document, Hit
from mempo.retrieval.rows import contents_of, row_of
from mempo.storage.jsonl import json_name, valid_text

_encode = json.JSONEncoder(ensure_ascii=False, check_circular=False).encode


class RefusedRequest(Exception):
    """A request that gets no answer. `status` and `error` are the reply's; see `error_body`."""

    def __init__(self, status: int, kind: str, message: str, retry_after_s: int | None = None, **facts: Any) -> None:
        super().__init__(message)
        self.status = status
        self.error = {"kind": kind, "message": message, **facts}
        self.retry_after_s = retry_after_s


def over_limit(status: int, limit: str, given: int | None, allowed: int) -> RefusedRequest:
    """`given` is None when nobody counted to the end."""
    so_many = "more" if given is None else str(given)
    message = f"{limit} is {allowed}, the request has {so_many}"
    return RefusedRequest(status, "limit", message, limit=limit, given=given, allowed=allowed)


@dataclass(frozen=True, slots=True)
class RetrieveRequest:
    queries: Sequence[str]
    top_k: int
    return_scores: bool


@dataclass(frozen=True, slots=True)
class Found:
    """The answer to one query, as its two replies: with scores and without. `[...]` in JSON."""

    scored: bytes
    plain: bytes


def read_retrieve(content: bytes, limits: ServiceSettings) -> RetrieveRequest:
    """Raises RefusedRequest: 422 for a body of another shape, and for what exceeds a limit."""
    body = _object(content)
    top_k, scores = body.get("topk"), body.get("return_scores")
    top_k = limits.default_top_k if top_k is None else top_k
    if isinstance(top_k, bool) or not isinstance(top_k, int) or top_k < 1:
        raise unreadable('"topk" must be an integer of at least 1, or null')
    if top_k > limits.max_top_k:
        raise over_limit(422, "max_top_k", top_k, limits.max_top_k)
    if scores is not None and not isinstance(scores, bool):
        raise unreadable(f'"return_scores" must be a boolean, not {json_name(scores)}')
    queries = _strings(body, "queries", limits)
    if len(queries) * top_k > limits.max_passages:
        raise over_limit(422, "max_passages", len(queries) * top_k, limits.max_passages)
    return RetrieveRequest(queries, top_k, bool(scores))


def read_access(content: bytes, limits: ServiceSettings) -> list[str]:
    """The urls asked for. Raises RefusedRequest as `read_retrieve` does."""
    return _strings(_object(content), "urls", limits)


def found(hits: Sequence[Hit], titles: bool) -> Found:
    """`titles` adds the key `title`, for a corpus whose rows have it."""
    rows = [_bytes(_row(hit.document, titles)) for hit in hits]
    scored = [b'{"document": %b, "score": %b}' % (row, _score(hit)) for row, hit in zip(rows, hits, strict=True)]
    return Found(_list(scored), _list(rows))


def page(url: str, document: Document | None) -> bytes:
    return b"null" if document is None else _bytes({"url": url, "contents": contents_of(document)})


def result(items: Sequence[bytes]) -> bytes:
    """The body of a reply."""
    return b'{"result": %b}' % _list(items)


def error_body(error: dict[str, Any]) -> bytes:
    # ASCII with escapes holds any string.
    return json.dumps({"error": error}).encode()


def unreadable(message: str) -> RefusedRequest:
    return RefusedRequest(422, "request", message)


def _object(content: bytes) -> dict[str, Any]:
    try:
        body = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise unreadable(f"the body is not JSON: {type(error).__name__}") from None
    if not isinstance(body, dict):
        raise unreadable(f"the body must be a JSON object, not {json_name(body)}")
    return body


def _strings(body: dict[str, Any], key: str, limits: ServiceSettings) -> list[str]:
    values = body.get(key)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise unreadable(f'"{key}" must be a list of strings')
    if len(values) > limits.max_queries:
        raise over_limit(422, "max_queries", len(values), limits.max_queries)
    longest = max(map(len, values), default=0)
    if longest > limits.max_query_chars:
        raise over_limit(422, "max_query_chars", longest, limits.max_query_chars)
    return [valid_text(value) for value in values]


def _row(document: Document, titles: bool) -> dict[str, str]:
    return {**row_of(document), "title": document.title} if titles else row_of(document)


def _score(hit: Hit) -> bytes:
    # JSON has no word for what is not finite.
    return repr(float(hit.score)).encode() if math.isfinite(hit.score) else b"null"


def _bytes(row: dict[str, str]) -> bytes:
    # A retriever of the user's own may bring text that UTF-8 cannot hold.
    return valid_text(_encode(row)).encode()


def _list(items: Sequence[bytes]) -> bytes:
    return b"[%b]" % b", ".join(items)
