"""The HTTP service over one retriever: `/retrieve`, `/access`, `/health`, `/info`, `/metrics`.

`/retrieve` and `/access` speak as the clients in use do (Search-R1, ASearcher, verl's search tool). Every refusal is a
typed JSON error, `{"error": {"kind": ..., "message": ...}}`.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from types import MappingProxyType
from typing import Any

from cachetools import LRUCache
from fastapi import FastAPI, Request, Response
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

import mempo
from mempo.config.retrieval import ServiceSettings
from mempo.retrieval.document import Retriever
from mempo.retrieval.server.batcher import Batcher, Busy
from mempo.retrieval.server.metrics import CONTENT_TYPE, ServiceMetrics
from mempo.retrieval.server.wire import (
    Found,
    RefusedRequest,
    error_body,
    found,
    over_limit,
    page,
    read_access,
    read_retrieve,
    result,
)

Handler = Callable[[Request], Awaitable[Response]]

Asked = tuple[str, int]
"""A query and its top k."""

_PHP = "index.php/", "index.php?title="

_ENTRY_BYTES = 400
"""What Python's objects take for one entry of the cache, texts apart."""


def create_app(
    retriever: Retriever,
    settings: ServiceSettings | None = None,
    token: str | None = None,
    about: Mapping[str, Any] | None = None,
    titles: bool = False,
) -> FastAPI:
    """An application over one retriever.

    `token` is asked for as `Authorization: Bearer`, by every path but `/health`; with one, the service does not
    describe itself (`/docs`, `/openapi.json`). `about` is shown by `/info`. `titles`
    adds the key `title` to rows, which otherwise are `id`, `contents` and, where there is one, `url`. Middleware added
    to the application sees all paths but `/retrieve` and `/access`.
    """
    service = _Service(retriever, settings or ServiceSettings(), token, about or {}, titles)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await service.close()

    described = None if token is not None else "/openapi.json"
    app = _App(title="mempo retrieval", version=mempo.__version__, lifespan=lifespan, openapi_url=described)
    app.shortcuts = {
        "/retrieve": service.handler("/retrieve", service.retrieve),
        "/access": service.handler("/access", service.access),
    }
    for path, handle in app.shortcuts.items():  # for other methods than POST, and for /openapi.json
        app.add_api_route(path, handle, methods=["POST"], response_class=Response)
    app.add_route("/info", service.handler("/info", service.info), methods=["GET"])
    app.add_route("/metrics", service.handler("/metrics", service.show_metrics), methods=["GET"])

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    return app


class _App(FastAPI):
    """The two paths that are asked in earnest go around the framework, which takes longer than a small index does."""

    shortcuts: Mapping[str, Handler] = MappingProxyType({})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handle = self.shortcuts.get(scope.get("path", "")) if scope.get("method") == "POST" else None
        if handle is None:
            await super().__call__(scope, receive, send)
            return
        response = await handle(Request(scope, receive))
        await response(scope, receive, send)


class _Service:
    def __init__(
        self, retriever: Retriever, settings: ServiceSettings, token: str | None, about: Mapping[str, Any], titles: bool
    ) -> None:
        self._retriever = retriever
        self._settings = settings
        self._token = None if token is None else token.encode()
        self._about = dict(about)
        self._titles = titles
        self._metrics = ServiceMetrics()
        # Answers with the bytes that they and their queries take.
        self._cache: LRUCache[Asked, tuple[Found, int]] = LRUCache(settings.cache_mib * (1 << 20), lambda kept: kept[1])
        limits = settings.max_batch_queries, settings.max_waiting_queries, settings.max_wait_s
        self._searches = Batcher[Asked, Found](self._search, *limits, seen=self._metrics.batches.observe)
        self._pages = Batcher[str, bytes](self._open, *limits)

    async def close(self) -> None:
        await self._searches.close()
        await self._pages.close()

    # --- what the paths answer -------------------------------------------------------------------------------------

    async def retrieve(self, request: Request) -> Response:
        asked = read_retrieve(await self._body(request), self._settings)
        keys = [(query, asked.top_k) for query in asked.queries]
        answers = {key: kept[0] if (kept := self._cache.get(key)) else None for key in keys}
        missing = [key for key, answer in answers.items() if answer is None]
        self._metrics.queries.inc(len(keys))
        if missing:
            with self._counted(len(missing)):
                found_now = await self._searches.ask(missing)
            for key, answer in zip(missing, found_now, strict=True):
                answers[key] = answer
                size = 4 * len(key[0]) + len(answer.scored) + len(answer.plain) + _ENTRY_BYTES
                with suppress(ValueError):  # larger than the whole cache
                    self._cache[key] = answer, size
        self._metrics.cached.inc(len(answers) - len(missing))
        lists = [answer for key in keys if (answer := answers[key]) is not None]
        return _json(200, result([each.scored if asked.return_scores else each.plain for each in lists]))

    async def access(self, request: Request) -> Response:
        urls = read_access(await self._body(request), self._settings)
        with self._counted(len(urls)):
            return _json(200, result(await self._pages.ask(urls)))

    async def info(self, _: Request) -> Response:
        facts = {
            "name": "mempo retrieval",
            "version": mempo.__version__,
            **self._about,
            "settings": self._settings.model_dump(mode="json"),
            "cache": {"entries": len(self._cache), "bytes": int(self._cache.currsize)},
        }
        return _json(200, json.dumps(facts).encode())

    async def show_metrics(self, _: Request) -> Response:
        return Response(self._metrics.text(), media_type=CONTENT_TYPE)

    # --- in the worker threads -------------------------------------------------------------------------------------

    def _search(self, asked: Sequence[Asked]) -> list[Found]:
        answers: dict[Asked, Found] = {}
        for top_k in {key[1] for key in asked}:  # not one call with the largest: an approximate index may differ
            queries = [query for query, k in asked if k == top_k]
            for query, hits in zip(queries, self._retriever.retrieve(queries, top_k), strict=True):
                answers[query, top_k] = found(hits, self._titles)
        return [answers[key] for key in asked]

    def _open(self, urls: Sequence[str]) -> list[bytes]:
        documents = self._retriever.access(urls)
        pages = [page(url, document) for url, document in zip(urls, documents, strict=True)]
        # ASearcher's pages are named in the one form, and asked for in the other.
        other = {i: url.replace(*_PHP) for i, url in enumerate(urls) if documents[i] is None and _PHP[0] in url}
        if other:
            for i, document in zip(other, self._retriever.access(list(other.values())), strict=True):
                pages[i] = page(urls[i], document)
        return pages

    # --- around every path -----------------------------------------------------------------------------------------

    def handler(self, path: str, answer: Handler) -> Handler:
        """`answer` with its refusals and failures as replies, counted and timed."""
        seconds = self._metrics.seconds.labels(path)
        replies: dict[int, Any] = {}

        async def handle(request: Request) -> Response:
            begun = time.perf_counter()
            try:
                self._refuse_strangers(request)
                response = await answer(request)
            except RefusedRequest as refused:
                response = _refusal(refused)
            except Busy as busy:
                response = _refusal(RefusedRequest(503, "busy", str(busy), busy.retry_after_s))
            except ClientDisconnect:
                response = Response(status_code=400)  # nobody reads it
            except asyncio.CancelledError:  # the service ends, and has waited for as long as it may
                response = _refusal(RefusedRequest(503, "stopping", "the service was told to stop", 1))
            except Exception as error:  # the one boundary: whatever a retriever raises becomes a reply
                response = _refusal(RefusedRequest(500, "retriever", f"{type(error).__name__}: {error}"))
            seconds.observe(time.perf_counter() - begun)
            status = response.status_code
            if status not in replies:
                replies[status] = self._metrics.requests.labels(path, str(status))
            replies[status].inc()
            return response

        return handle

    @contextmanager
    def _counted(self, waiting: int) -> Iterator[None]:
        self._metrics.waiting.inc(waiting)
        try:
            yield
        finally:
            self._metrics.waiting.dec(waiting)

    def _refuse_strangers(self, request: Request) -> None:
        if self._token is None:
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode("latin-1"), self._token):
            raise RefusedRequest(401, "token", "this service asks for a bearer token, and got none or another")

    async def _body(self, request: Request) -> bytes:
        allowed = self._settings.max_body_bytes
        announced = request.headers.get("content-length", "")
        if announced.isdecimal() and int(announced) > allowed:
            raise over_limit(413, "max_body_bytes", int(announced), allowed)
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._settings.body_timeout_s):
                async for part in request.stream():
                    size += len(part)
                    if size > allowed:
                        raise over_limit(413, "max_body_bytes", None, allowed)
                    parts.append(part)
        except TimeoutError:
            message = f"the body did not arrive within {self._settings.body_timeout_s:g} s"
            raise RefusedRequest(408, "slow_body", message) from None
        return b"".join(parts)


def _refusal(refused: RefusedRequest) -> Response:
    response = _json(refused.status, error_body(refused.error))
    if refused.retry_after_s is not None:
        response.headers["retry-after"] = str(refused.retry_after_s)
    if refused.status == 401:
        response.headers["www-authenticate"] = "Bearer"
    return response


def _json(status: int, body: bytes) -> Response:
    return Response(body, status_code=status, media_type="application/json")
