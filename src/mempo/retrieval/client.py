"""A retriever behind HTTP: the `/retrieve` and `/access` convention, with bounded retries and typed failures."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from mempo.config.addresses import server_address
from mempo.config.retrieval import ClientSettings
from mempo.config.tools import RetrySettings
from mempo.errors import UserError
from mempo.http.client import HttpClient
from mempo.http.errors import RETRIED_STATUSES as RETRIED_STATUSES
from mempo.http.secrets import key_of
from mempo.retrieval.document import Document, Hit
from mempo.retrieval.rows import document_of
from mempo.storage.jsonl import json_name, valid_text

T = TypeVar("T")

TOKEN = "MEMPO_RETRIEVAL_TOKEN"
"""The environment variable that holds the bearer token of service and client."""


MAX_REPLY_BYTES = 256 << 20
"""A longer reply is broken off and counts as one of the wrong form."""


class HttpRetriever:
    """A Retriever that asks a server. Safe to use from threads; they share one pool of connections.

    Connection errors, time-outs, replies that are not JSON and the statuses in `RETRIED_STATUSES` are tried again,
    `tries` times in all; every other failure, and the last of these, is an HttpError. The first wait is `backoff_s`,
    doubled each time, and shortened by a random part of it, at most half. A server that asks for a longer wait
    (Retry-After) gets it, up to 30 s.
    """

    def __init__(
        self,
        url: str,
        timeout_s: float = 30.0,
        tries: int = 5,
        backoff_s: float = 1.0,
        token: str | None = None,
        max_concurrent: int = 64,
        max_reply_bytes: int = MAX_REPLY_BYTES,
    ) -> None:
        """`url`: scheme, host and port, with or without the path `/retrieve`; `timeout_s`: seconds of one try, from
        the look-up of the host to the end of the reply; `token`: sent as `Authorization: Bearer`, and taken out of
        whatever comes back; the rest as in ClientSettings.

        Nothing is sent yet. Raises UserError when the url or a number cannot be used.
        """
        if tries < 1 or timeout_s <= 0 or backoff_s < 0 or max_concurrent < 1:
            raise UserError(
                f"retrieval server: tries={tries} (at least 1), timeout_s={timeout_s} (above 0), "
                f"backoff_s={backoff_s} (0 or more), max_concurrent={max_concurrent} (at least 1)"
            )
        self.url = retrieval_address(url)
        self._retry = RetrySettings(tries=tries, backoff_s=backoff_s, max_backoff_s=30.0)
        self._http = HttpClient("retrieval server", self.url, timeout_s, max_reply_bytes, max_concurrent, token=token)

    @classmethod
    def of(cls, url: str, settings: ClientSettings, tries: int = 1, token: str | None = None) -> HttpRetriever:
        """As the settings say; `tries` 1 leaves trying again to the tools."""
        return cls(url, tries=tries, token=token, **settings.model_dump())

    def retrieve(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
        """See Retriever. A server that sends no scores gives every hit the score 0.0, in the server's order.

        Raises HttpError, and ValueError when `top_k` < 1.
        """
        if top_k < 1:
            raise ValueError(f"top_k must be at least 1, not {top_k}")
        if not queries:
            return []
        request = {"queries": [valid_text(query) for query in queries], "topk": top_k, "return_scores": True}
        return self._ask("/retrieve", request, lambda body: _hits(body, len(queries), top_k))

    def access(self, urls: Sequence[str]) -> list[Document | None]:
        """See Retriever. Raises HttpError."""
        if not urls:
            return []
        request = {"urls": [valid_text(url) for url in urls]}
        return self._ask("/access", request, lambda body: _pages(body, urls))

    def health(self) -> None:
        """Asks for one document, as training will, and raises the HttpError of a server that cannot answer.

        The servers in use have no common health address; a real request also finds one that speaks another language.
        """
        self.retrieve(["the capital of France"], top_k=1)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> HttpRetriever:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, path: str, request: Mapping[str, Any], read: Callable[[Any], list[T]]) -> list[T]:
        return self._http.ask_now("POST", path, request, read, self._retry)


def token_from_environment() -> str | None:
    """The bearer token, or None where there is none. Raises UserError for one that no header can hold."""
    return key_of(TOKEN)


def retrieval_address(url: str) -> str:
    """The address that `/retrieve` is put behind. Raises UserError for one that cannot be used."""
    try:
        return server_address(url, "retrieval server", "http://127.0.0.1:8013", TOKEN).removesuffix("/retrieve")
    except ValueError as error:
        raise UserError(str(error)) from None


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
