"""The retrieval server as public projects write it, over the same index.

    python bench/plain_server.py INDEX PORT [quick]

A FastAPI handler with models, one request at a time under a lock, one query after the other, rows looked up one by one,
no cache; uvicorn as `pip install fastapi uvicorn` brings it. With `quick` it has the parser and the event loop that
mempo installs beside uvicorn, so that only the server's own work differs.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from mempo.retrieval.index import open_index
from mempo.retrieval.rows import row_of


class QueryRequest(BaseModel):
    queries: list[str]
    topk: int | None = None
    return_scores: bool = False


def create_app(index_dir: str) -> FastAPI:
    index, lock, app = open_index(index_dir), threading.Lock(), FastAPI()

    @app.post("/retrieve")
    def retrieve(request: QueryRequest) -> dict[str, Any]:
        result = []
        with lock:
            for query in request.queries:
                hits = index.retrieve([query], request.topk or 3)[0]
                rows = [row_of(hit.document) for hit in hits]
                if request.return_scores:
                    rows = [{"document": row, "score": hit.score} for row, hit in zip(rows, hits, strict=True)]
                result.append(rows)
        return {"result": result}

    return app


if __name__ == "__main__":
    options: dict[str, Any] = {} if sys.argv[3:] == ["quick"] else {"http": "h11", "loop": "asyncio"}
    uvicorn.run(create_app(sys.argv[1]), host="127.0.0.1", port=int(sys.argv[2]), log_level="warning", **options)
