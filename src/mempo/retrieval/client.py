"""A retriever behind HTTP: the `/retrieve` and `/access` convention, with bounded retries and typed failures."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx

from mempo.errors import UserError
from mempo.retrieval.errors import FailureKind, RetrievalError, body_head
from mempo.retrieval.jsonl import json_name, valid_text
from mempo.retrieval.rows import document_of
from mempo.retrieval.types import Document, Hit

T = TypeVar("T")

RETRIED_STATUSES = frozenset({500, 502, 503, 504})
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class HttpRetriever:
    """A Retriever that asks a server. Safe to use from threads; they share one pool of connections.

    Connection errors, time-outs and the statuses 500, 502, 503, 504 are tried again, `tries` times in all, waiting
    `backoff_s`, then 2 × `backoff_s`, ... in between; every other failure, and the last of these, is a RetrievalError.
    """

    def __init__(
        self,
        url: str,
        timeout_s: float = 30.0,
        tries: int = 5,
        backoff_s: float = 1.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`url`: scheme, host and port, with or without the path `/retrieve`; `timeout_s`: seconds that one try waits
        for a connection, and then for each part of the reply.

        Nothing is sent yet. Raises UserError when the url or a number cannot be used.
        """
        if tries < 1 or timeout_s <= 0 or backoff_s < 0:
            raise UserError(
                f"retrieval server: tries={tries} (at least 1), timeout_s={timeout_s} (above 0), "
                f"backoff_s={backoff_s} (0 or more)"
            )
        self.url = _base_url(url)
        self.tries = tries
        self.timeout_s = timeout_s
        self.backoff_s = backoff_s
        self._sleep = sleep
        # A proxy named in the environment cannot reach a server on this very machine.
        trust_env = urlsplit(self.url).hostname not in _LOOPBACK
        self._client = httpx.Client(timeout=timeout_s, trust_env=trust_env, limits=httpx.Limits(max_connections=None))

    def retrieve(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
        """See Retriever. A server that sends no scores gives every hit the score 0.0, in the server's order.

        Raises RetrievalError, and ValueError when `top_k` < 1.
        """
        if top_k < 1:
            raise ValueError(f"top_k must be at least 1, not {top_k}")
        if not queries:
            return []
        request = {"queries": [valid_text(query) for query in queries], "topk": top_k, "return_scores": True}
        return self._ask("/retrieve", request, lambda body: _hits(body, len(queries), top_k))

    def access(self, urls: Sequence[str]) -> list[Document | None]:
        """See Retriever. Raises RetrievalError."""
        if not urls:
            return []
        request = {"urls": [valid_text(url) for url in urls]}
        return self._ask("/access", request, lambda body: _pages(body, urls))

    def health(self) -> None:
        """Asks for one document, as training will, and raises the RetrievalError of a server that cannot answer.

        The servers in use have no common health address; a real request also finds one that speaks another language.
        """
        self.retrieve(["the capital of France"], top_k=1)

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> HttpRetriever:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, path: str, request: Mapping[str, Any], read: Callable[[Any], list[T]]) -> list[T]:
        url = self.url + path
        response = self._post(url, request)
        head = body_head(response.content)
        try:
            body = response.json()
        except (ValueError, RecursionError):
            raise RetrievalError("not_json", url, response.status_code, head, "the reply is not JSON") from None
        try:
            return read(body)
        except (ValueError, OverflowError) as error:
            raise RetrievalError("schema", url, response.status_code, head, str(error)) from None

    def _post(self, url: str, request: Mapping[str, Any]) -> httpx.Response:
        """The first reply with a status of 2xx within the allowed tries."""
        for attempt in range(1, self.tries + 1):
            failure, again = self._try(url, request, attempt)
            if isinstance(failure, httpx.Response):
                return failure
            if not again or attempt == self.tries:
                raise failure
            self._sleep(self.backoff_s * attempt)
        raise AssertionError("unreachable: tries >= 1")

    def _try(self, url: str, request: Mapping[str, Any], attempt: int) -> tuple[httpx.Response | RetrievalError, bool]:
        """A good reply, or the failure and whether another try may help."""
        tries = f"after {attempt} {'try' if attempt == 1 else 'tries'}"
        kind: FailureKind
        try:
            content = json.dumps(request, ensure_ascii=False).encode("utf-8")
            response = self._client.post(url, content=content, headers={"content-type": "application/json"})
        except httpx.TimeoutException as error:
            reason = f"no answer within {self.timeout_s:g} s {tries} ({type(error).__name__})"
            return RetrievalError("timeout", url, None, "", reason), True
        except httpx.ConnectError as error:
            return RetrievalError("refused", url, None, "", f"no connection {tries} ({error}); is it running?"), True
        except httpx.TransportError as error:
            return RetrievalError("refused", url, None, "", f"the connection broke off {tries} ({error})"), True
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return RetrievalError("refused", url, None, "", f"the request failed {tries} ({error})"), False
        if response.is_success:
            return response, False
        kind, head = "status", body_head(response.content)
        failure = RetrievalError(kind, url, response.status_code, head, f"HTTP {response.status_code} {tries}")
        return failure, response.status_code in RETRIED_STATUSES


def _base_url(url: str) -> str:
    text = url.strip().rstrip("/").removesuffix("/retrieve")
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable:
        raise UserError(f"retrieval server {url!r} is not an address; write it as http://127.0.0.1:8013")
    return text


def _result(body: Any, count: int, asked: str) -> list[Any]:
    result = body.get("result") if isinstance(body, dict) else None
    if not isinstance(result, list):
        raise ValueError('the reply has no list "result"')
    if len(result) != count:
        raise ValueError(f'"result" holds {len(result)} entries for {count} {asked}')
    return result


def _hits(body: Any, queries: int, top_k: int) -> list[list[Hit]]:
    lists = _result(body, queries, "queries")
    for i, items in enumerate(lists):
        if not isinstance(items, list):
            raise ValueError(f"result {i} is {json_name(items)}, not a list of documents")
    return [
        [_hit(item, f"result {i}, item {j}") for j, item in enumerate(items[:top_k])] for i, items in enumerate(lists)
    ]


def _hit(item: Any, where: str) -> Hit:
    row, score = item, 0.0
    if isinstance(item, dict) and isinstance(item.get("document"), dict):
        row, score = item["document"], 0.0 if item.get("score") is None else item["score"]
    if isinstance(score, bool) or not isinstance(score, int | float):
        raise ValueError(f"{where}: the score is {json_name(score)}, not a number")
    return Hit(_document(row, where), float(score))


def _pages(body: Any, urls: Sequence[str]) -> list[Document | None]:
    pages: list[Document | None] = []
    for i, (row, url) in enumerate(zip(_result(body, len(urls), "urls"), urls, strict=True)):
        if isinstance(row, dict):
            row = {**row, "url": row.get("url") or url}
        pages.append(None if row is None else _document(row, f"result {i}"))
    return pages


def _document(row: Any, where: str) -> Document:
    if not isinstance(row, dict):
        raise ValueError(f"{where} is {json_name(row)}, not a document")
    # A row without an id still needs one that is the same each time it is found.
    digest = hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()[:16]
    try:
        return document_of(row, default_id=f"sha256:{digest}")
    except ValueError as error:
        raise ValueError(f"{where}: a document {error}") from None
