"""`<search>query</search>`: the top passages of a retriever, numbered, with titles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mempo.config.tools import SearchSettings
from mempo.retrieval.document import Hit
from mempo.rollout.interfaces import ToolResult
from mempo.tools.call import Calls

_REMEMBERED = 20_000
MAX_QUERY_CHARS = 2000


class Searchable(Protocol):
    """Anything that finds passages: every `Retriever` does. Safe to call from threads."""

    def retrieve(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]: ...


class SearchTool:
    """A `Tool` over anything with `retrieve(queries, top_k)`."""

    name = "search"

    def __init__(self, retriever: Searchable, settings: SearchSettings | None = None) -> None:
        self._retriever = retriever
        self._settings = settings = settings or SearchSettings()
        self._calls = Calls(settings.retry, settings.max_concurrent, _REMEMBERED)

    async def call(self, argument: str) -> ToolResult:
        return await self._calls.result(argument, "query", MAX_QUERY_CHARS, self._find, self._show)

    def _find(self, query: str) -> list[Hit]:
        return self._retriever.retrieve([query], self._settings.top_k)[0]

    def _show(self, hits: list[Hit]) -> ToolResult:
        if not hits:
            return ToolResult(notice="nothing was found")
        documents, longest = [hit.document for hit in hits], self._settings.max_passage_chars
        return ToolResult(
            tuple(
                self._settings.passage.format(n=n, title=one.title, text=one.text[:longest], url=one.url or "")
                for n, one in enumerate(documents, start=1)
            )
        )
