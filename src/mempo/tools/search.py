"""`<search>query</search>`: the top passages of a retriever, numbered, with titles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from pydantic import Field, field_validator

from mempo.interfaces import ToolResult
from mempo.retrieval.types import Hit
from mempo.settings import Settings
from mempo.tools.calls import Calls
from mempo.tools.retrying import RetrySettings
from mempo.tools.web_settings import WebSearchSettings

_REMEMBERED = 20_000


class SearchSettings(Settings):
    """Settings of the search tool. The budget in tokens, `limits.max_obs_tokens`, is the loop's to keep."""

    source: Literal["corpus", "web"] = "corpus"
    """`corpus` is what `data.*` names, in this process or behind a server; `web` asks a search engine."""
    top_k: int = Field(default=5, ge=1)
    passage: str = "[{n}] {title}\n{text}"
    """How a passage is shown; `{n}`, `{title}`, `{text}` and `{url}` are filled in."""
    max_query_chars: int = Field(default=2000, ge=1)
    max_passage_chars: int = Field(default=5000, ge=1)
    """A longer passage is cut before it is tokenised."""
    short_passage_chars: int = Field(default=160, ge=0)
    """As much of a passage stays where old results are shown short (`prompt.short_results`)."""
    max_concurrent: int = Field(default=32, ge=1)
    """Searches under way at once."""
    retry: RetrySettings = RetrySettings()
    web: WebSearchSettings = WebSearchSettings()

    @field_validator("passage")
    @classmethod
    def _known_fields(cls, value: str) -> str:
        try:
            value.format(n=1, title="", text="", url="")
        except (KeyError, IndexError, ValueError, AttributeError) as error:
            raise ValueError(
                f"passage {value!r} cannot be filled in ({type(error).__name__}: {error}); "
                "it may hold {n}, {title}, {text} and {url}"
            ) from error
        return value


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
        return await self._calls.result(argument, "query", self._settings.max_query_chars, self._find, self._show)

    def _find(self, query: str) -> list[Hit]:
        return self._retriever.retrieve([query], self._settings.top_k)[0]

    def _show(self, hits: list[Hit]) -> ToolResult:
        if not hits:
            return ToolResult(notice="nothing was found")
        whole, short = self._settings.max_passage_chars, self._settings.short_passage_chars
        return ToolResult(passages=self._passages(hits, whole), short=self._passages(hits, min(short, whole)))

    def _passages(self, hits: list[Hit], chars: int) -> tuple[str, ...]:
        return tuple(
            self._settings.passage.format(
                n=n, title=hit.document.title, text=hit.document.text[:chars], url=hit.document.url or ""
            )
            for n, hit in enumerate(hits, start=1)
        )
