"""The HTTP service: `/retrieve` and `/access` as the clients in use speak them, and `/health`.

Bodies are read by hand and not by models: a hostile string (a lone surrogate) must come to an answer, not to a failure
of the error message about it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.concurrency import run_in_threadpool

from mempo.retrieval.jsonl import json_name, valid_text
from mempo.retrieval.rows import contents_of, row_of
from mempo.retrieval.types import Document, Hit, Retriever


def create_app(retriever: Retriever, default_top_k: int = 3) -> FastAPI:
    """An application over one retriever; `default_top_k` answers requests whose `topk` is null or absent.

    A request it cannot read gets status 422 and `{"error": {"kind": "request", "message": ...}}`; a failure of the
    retriever gets status 500 and the kind `retriever`.
    """
    if default_top_k < 1:
        raise ValueError(f"default_top_k must be at least 1, not {default_top_k}")
    app = FastAPI(title="mempo retrieval")

    @app.get("/health")
    def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.post("/retrieve")
    async def retrieve(request: Request) -> Response:
        def answer(body: dict[str, Any]) -> list[Any]:
            asked = _RetrieveRequest.read(body, default_top_k)
            lists = retriever.retrieve(asked.queries, asked.top_k)
            return [[_item(hit, asked.return_scores) for hit in hits] for hits in lists]

        return await run_in_threadpool(_answer, await request.body(), answer)

    @app.post("/access")
    async def access(request: Request) -> Response:
        def answer(body: dict[str, Any]) -> list[Any]:
            urls = _strings(body, "urls")
            return [_page(url, document) for url, document in zip(urls, retriever.access(urls), strict=True)]

        return await run_in_threadpool(_answer, await request.body(), answer)

    return app


class _BadRequest(ValueError):
    """A request that cannot be read; the message is the reply's."""


@dataclass(frozen=True, slots=True)
class _RetrieveRequest:
    queries: Sequence[str]
    top_k: int
    return_scores: bool

    @classmethod
    def read(cls, body: dict[str, Any], default_top_k: int) -> _RetrieveRequest:
        top_k, scores = body.get("topk"), body.get("return_scores")
        top_k = default_top_k if top_k is None else top_k
        if isinstance(top_k, bool) or not isinstance(top_k, int) or top_k < 1:
            raise _BadRequest('"topk" must be an integer of at least 1, or null')
        if scores is not None and not isinstance(scores, bool):
            raise _BadRequest(f'"return_scores" must be a boolean, not {json_name(scores)}')
        return cls(_strings(body, "queries"), top_k, bool(scores))


def _answer(content: bytes, answer: Callable[[dict[str, Any]], list[Any]]) -> Response:
    try:
        body = json.loads(content)
    except (ValueError, RecursionError) as error:
        return _error(422, "request", f"the body is not JSON: {type(error).__name__}")
    if not isinstance(body, dict):
        return _error(422, "request", f"the body must be a JSON object, not {json_name(body)}")
    try:
        return _json(200, {"result": answer(body)})
    except _BadRequest as error:
        return _error(422, "request", str(error))
    except Exception as error:  # the one boundary: whatever a retriever raises becomes a reply, and the server lives
        return _error(500, "retriever", f"{type(error).__name__}: {error}")


def _strings(body: dict[str, Any], key: str) -> list[str]:
    values = body.get(key)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise _BadRequest(f'"{key}" must be a list of strings')
    return [valid_text(value) for value in values]


def _item(hit: Hit, return_scores: bool) -> dict[str, Any]:
    row = row_of(hit.document)
    return {"document": row, "score": hit.score} if return_scores else row


def _page(url: str, document: Document | None) -> dict[str, str] | None:
    return None if document is None else {"url": url, "contents": contents_of(document)}


def _error(status: int, kind: str, message: str) -> Response:
    return _json(status, {"error": {"kind": kind, "message": message}})


def _json(status: int, body: dict[str, Any]) -> Response:
    # ASCII with escapes holds any string.
    return Response(json.dumps(body), status_code=status, media_type="application/json")
