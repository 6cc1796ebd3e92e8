"""`<access>url</access>`: a whole page, of the corpus or, behind a switch, of the live web."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mempo.config.tools import AccessSettings
from mempo.retrieval.document import Document
from mempo.rollout.interfaces import ToolResult
from mempo.tools.call import Calls, bad_call

_REMEMBERED = 2000
MAX_URL_CHARS = 2000


class Accessible(Protocol):
    """Anything that opens pages: every `Retriever` does. Safe to call from threads."""

    def access(self, urls: Sequence[str]) -> list[Document | None]: ...


class AccessTool:
    """A `Tool` over anything with `access(urls)`."""

    name = "access"

    def __init__(self, pages: Accessible, settings: AccessSettings | None = None) -> None:
        self._pages = pages
        self._settings = settings = settings or AccessSettings()
        self._calls = Calls(settings.retry, settings.max_concurrent, _REMEMBERED)

    async def call(self, argument: str) -> ToolResult:
        return await self._calls.result(argument, "url", MAX_URL_CHARS, self._find, self._show)

    def _find(self, url: str) -> Document | None:
        return self._pages.access([url])[0]

    def _show(self, page: Document | None) -> ToolResult:
        if page is None:
            return bad_call("no page has this url")
        return ToolResult(passages=(f"{page.title}\n{page.text[: self._settings.max_page_chars]}",))
