"""A retriever behind HTTP: the `/retrieve` and `/access` convention, with bounded retries and typed failures."""

from __future__ import annotations

import hashlib
import json
import os
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx

from mempo.config.retrieval import ClientSettings
from mempo.errors import UserError
from mempo.retrieval.errors import RETRIED_STATUSES as RETRIED_STATUSES
from mempo.retrieval.errors import RetrievalError, body_head
from mempo.retrieval.jsonl import json_name, valid_text
from mempo.retrieval.rows import document_of
from mempo.retrieval.types import Document, Hit

T = TypeVar("T")

TOKEN = "MEMPO_RETRIEVAL_TOKEN"
"""The environment variable that holds the bearer token of service and client."""

_MAX_RETRY_AFTER_S = 30.0
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class HttpRetriever:
    """A Retriever that asks a server. Safe to use from threads; they share one pool of connections.

    Connection errors, time-outs, replies that are no JSON and the statuses 500, 502, 503, 504 are tried again, `tries`
    times in all; every other failure, and the last of these, is a RetrievalError. The wait before try n + 1 is
    n × `backoff_s`, shortened by a random part of it, at most half: clients that failed together do not come back
    together. A server that asks for a longer wait (Retry-After) gets it, up to 30 s.
    """

    def __init__(
        self,
        url: str,
        timeout_s: float = 30.0,
        tries: int = 5,
        backoff_s: float = 1.0,
        sleep: Callable[[float], None] = time.sleep,
        token: str | None = None,
        max_concurrent: int = 64,
        max_reply_bytes: int = 256 << 20,
    ) -> None:
        """`url`: scheme, host and port, with or without the path `/retrieve`; `timeout_s`: seconds of one try, the
        whole reply included; `token`: sent as `Authorization: Bearer`; the rest as in ClientSettings.

        Nothing is sent yet. Raises UserError when the url or a number cannot be used.
        """
        if tries < 1 or timeout_s <= 0 or backoff_s < 0 or max_concurrent < 1:
            raise UserError(
                f"retrieval server: tries={tries} (at least 1), timeout_s={timeout_s} (above 0), "
                f"backoff_s={backoff_s} (0 or more), max_concurrent={max_concurrent} (at least 1)"
            )
        self.url = _base_url(url)
        self.tries = tries
        self.timeout_s = timeout_s
        self.backoff_s = backoff_s
        self._sleep = sleep
        self._max_reply_bytes = max_reply_bytes
        self._turns = threading.BoundedSemaphore(max_concurrent)
        headers = {"content-type": "application/json", "accept": "application/json"}
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        # A proxy named in the environment cannot reach a server on this very machine.
        trust_env = urlsplit(self.url).hostname not in _LOOPBACK
        # Many servers hang up after 5 idle seconds: a connection is given up before, not while a request is on its way.
        limits = httpx.Limits(
            max_connections=max_concurrent, max_keepalive_connections=max_concurrent, keepalive_expiry=4.0
        )
        self._client = httpx.Client(timeout=timeout_s, trust_env=trust_env, limits=limits, headers=headers)

    @classmethod
    def of(cls, url: str, settings: ClientSettings, tries: int = 1, token: str | None = None) -> HttpRetriever:
        """As the settings say; `tries` 1 leaves trying again to the tools."""
        return cls(url, tries=tries, token=token, **settings.model_dump())

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
        content = json.dumps(request, ensure_ascii=False).encode("utf-8")
        for attempt in range(1, self.tries + 1):
            try:
                return self._try(url, content, read, f"after {attempt} {'try' if attempt == 1 else 'tries'}")
            except RetrievalError as error:
                if attempt == self.tries or not error.transient:
                    raise
                wait_s = self.backoff_s * attempt * (1 - random.random() / 2)
                self._sleep(max(wait_s, min(error.retry_after_s or 0.0, _MAX_RETRY_AFTER_S)))
        raise AssertionError("unreachable: tries >= 1")

    def _try(self, url: str, content: bytes, read: Callable[[Any], list[T]], tries: str) -> list[T]:
        """One request. Raises RetrievalError."""
        try:
            with self._turns:
                response, reply = self._post(url, content)
        except httpx.TimeoutException as error:
            reason = f"no answer within {self.timeout_s:g} s {tries} ({type(error).__name__})"
            raise RetrievalError("timeout", url, None, "", reason) from None
        except httpx.ConnectError as error:
            reason = f"no connection {tries} ({error}); is it running?"
            raise RetrievalError("refused", url, None, "", reason) from None
        except httpx.RequestError as error:
            raise RetrievalError("refused", url, None, "", f"the connection broke off {tries} ({error})") from None
        status, head = response.status_code, body_head(reply)
        if not response.is_success:
            retry_after_s = _seconds(response.headers.get("retry-after"))
            raise RetrievalError("status", url, status, head, f"HTTP {status} {tries}", retry_after_s)
        if len(reply) > self._max_reply_bytes:
            reason = f"the reply is longer than {self._max_reply_bytes} bytes"
            raise RetrievalError("schema", url, status, head, reason)
        try:
            body = json.loads(reply)
        except (ValueError, RecursionError):
            raise RetrievalError("not_json", url, status, head, f"the reply is not JSON {tries}") from None
        try:
            return read(body)
        except (ValueError, OverflowError) as error:
            raise RetrievalError("schema", url, status, head, str(error)) from None

    def _post(self, url: str, content: bytes) -> tuple[httpx.Response, bytes]:
        """The reply and its bytes, up to the first that are too many. The time-out of httpx is one for each part: a
        server that trickles would never meet it."""
        until = time.monotonic() + self.timeout_s
        with self._client.stream("POST", url, content=content) as response:
            parts, size = list[bytes](), 0
            for part in response.iter_bytes():
                parts.append(part)
                size += len(part)
                if time.monotonic() > until:
                    raise httpx.ReadTimeout("the reply did not end")
                if size > self._max_reply_bytes:
                    break
            return response, b"".join(parts)


def token_from_environment() -> str | None:
    """The bearer token, or None where there is none. Raises UserError for one that no header can hold."""
    token = os.environ.get(TOKEN, "").strip()
    if token and not (token.isascii() and token.isprintable() and " " not in token):
        raise UserError(f"{TOKEN} holds characters that no HTTP header can carry; use visible ASCII without spaces")
    return token or None


def _seconds(retry_after: str | None) -> float | None:
    """The header's number of seconds; its other form, a date, is not used."""
    return float(retry_after) if retry_after is not None and retry_after.strip().isdecimal() else None


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
