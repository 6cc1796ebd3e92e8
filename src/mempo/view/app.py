"""The pages of `mempo view`, made when they are asked for. Nothing can be changed through them.

Only readers of this machine get in: the Host header must be an address of this machine's own, which that of a foreign
page never is, whatever its name resolves to; or, bound to other addresses, the path begins with a secret.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlencode

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse

from mempo.errors import UserError
from mempo.view.curves import curves
from mempo.view.filters import FILTERS, chosen
from mempo.view.folder import TABLE_HEAD, ViewedFolder
from mempo.view.pages import POLICY, STATIC, render, static
from mempo.view.rollouts import RolloutFile, Row
from mempo.view.turns import turns_of

PAGE_ROWS = 50
MAX_START = 10**12
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_HEADERS = {
    "content-security-policy": POLICY,
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
_KINDS = {"css": "text/css", "js": "text/javascript"}


def create_app(folders: Sequence[ViewedFolder], token: str | None = None) -> FastAPI:
    """The application over some folders. `token`: every path begins with it; None: this machine alone is let in."""
    app = FastAPI(openapi_url=None, redirect_slashes=False)
    base = f"/{token}" if token else ""

    @app.middleware("http")
    async def guard(request: Request, proceed: Callable[[Request], Any]) -> Response:
        refusal = _refusal(request, token)
        response = refusal if refusal is not None else await proceed(request)
        response.headers.update(_HEADERS)
        return response

    @app.exception_handler(UserError)
    async def told(_: Request, error: UserError) -> Response:
        return HTMLResponse(render("error.html", base=base, message=str(error)), 500)

    @app.exception_handler(RequestValidationError)  # an address that is none of ours
    @app.exception_handler(LookupError)
    async def missing(_: Request, __: Exception) -> Response:
        return HTMLResponse(render("error.html", base=base, message="There is no such page."), 404)

    def folder_of(n: int) -> ViewedFolder:
        if not 0 <= n < len(folders):
            raise LookupError(n)
        return folders[n]

    def place(n: int, name: str) -> tuple[ViewedFolder, RolloutFile, dict[str, Any]]:
        folder = folder_of(n)
        file = folder.files()[name]
        return folder, file, {"base": base, "n": n, "folder": folder, "file": file}

    @app.get(f"{base}/")
    def index() -> Response:
        context = {"base": base, "folders": folders, "curves": curves(folders), "head": TABLE_HEAD}
        return HTMLResponse(render("index.html", **context))

    @app.get(f"{base}/data.json")
    def data(version: str = "") -> Response:
        found = curves(folders)
        return Response(status_code=204) if found["version"] == version else JSONResponse(found)

    @app.get(f"{base}/static/{{name}}")
    def asset(name: str) -> Response:
        return Response(static(name), media_type=_KINDS[name.rpartition(".")[2]]) if name in STATIC else _no()

    @app.get(f"{base}/run/{{n}}/config")
    def config(n: int) -> Response:
        return PlainTextResponse(folder_of(n).config_text)

    @app.get(f"{base}/run/{{n}}/{{name}}/")
    def questions(n: int, name: str, filter: str = "", text: str = "", start: int = 0) -> Response:
        folder, file, context = place(n, name)
        start = min(max(start, 0), MAX_START)
        asked = {"filter": filter if filter in FILTERS else "", "text": text}
        groups: list[list[Row]] = []
        rows: list[Row] = []
        if asked["filter"] or text:
            rows, more = chosen(folder, file, filter, text, start, PAGE_ROWS)
        else:
            found = grouped(file.rows())
            groups, more = found[start : start + PAGE_ROWS], len(found) > start + PAGE_ROWS
        starts = {"earlier": start - PAGE_ROWS if start else None, "later": start + PAGE_ROWS if more else None}
        links = {
            key: None if at is None else "?" + urlencode({**asked, "start": max(at, 0)}) for key, at in starts.items()
        }
        context |= {"groups": groups, "rows": rows, "filters": FILTERS, "asked": asked, "links": links, "start": start}
        return HTMLResponse(render("questions.html", count=len(file.rows()), **context))

    @app.get(f"{base}/run/{{n}}/{{name}}/question/{{first}}")
    def question(n: int, name: str, first: int) -> Response:
        folder, file, context = place(n, name)
        rows = file.group(first)
        if not rows:
            raise LookupError(first)
        trained = any(row.advantage is not None for row in rows)
        rows.sort(key=lambda row: _order(row.advantage if trained else row.score))
        columns = [(row, *turns_of(file, row.number, folder.tokenizer())) for row in rows]
        firsts = list(dict.fromkeys(row.first for row in file.rows()))
        context |= {"columns": columns, **_neighbours(firsts, first)}
        return HTMLResponse(render("question.html", **context))

    @app.get(f"{base}/run/{{n}}/{{name}}/rollout/{{number}}")
    def rollout(n: int, name: str, number: int) -> Response:
        folder, file, context = place(n, name)
        facts, turns = turns_of(file, number, folder.tokenizer())
        rows = file.rows()
        row = next((row for row in rows if row.number == number), None)
        if row is None:  # made again since: the later line counts
            raise LookupError(number)
        context |= {"facts": facts, "turns": turns, "row": row, **_neighbours([r.number for r in rows], number)}
        return HTMLResponse(render("rollout.html", **context))

    return app


def grouped(rows: Sequence[Row]) -> list[list[Row]]:
    """The rollouts of each question, in the order of `rows`."""
    found: dict[int, list[Row]] = {}
    for row in rows:
        found.setdefault(row.first, []).append(row)
    return list(found.values())


def _neighbours(numbers: Sequence[int], number: int) -> dict[str, int | None]:
    i = numbers.index(number) if number in numbers else 0
    return {"before": numbers[i - 1] if i else None, "after": numbers[i + 1] if i + 1 < len(numbers) else None}


def _order(value: float | None) -> float:
    return float("inf") if value is None else -value


def _refusal(request: Request, token: str | None) -> Response | None:
    """What a request that may not pass is answered with."""
    if token is not None:
        first = request.url.path.split("/")[1]
        return None if hmac.compare_digest(first.encode(), token.encode()) else _no()
    host = request.headers.get("host", "")
    name = host if host.endswith("]") else host.rsplit(":", 1)[0]
    if name.lower() not in LOOPBACK:
        return PlainTextResponse("This page is for this machine: open it as localhost.", 403)
    return None


def _no() -> Response:
    return PlainTextResponse("There is no such page.", 404)
