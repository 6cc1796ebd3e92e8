"""`<search>query</search>`: the top passages of a retriever, numbered, with titles."""

from __future__ import annotations

from pydantic import Field, field_validator

from mempo.interfaces import ToolResult
from mempo.retrieval.types import Hit, Retriever
from mempo.settings import Settings
from mempo.tools.retrying import RetrySettings, Unavailable, call_with_retries, checked_argument, unavailable

_CACHE_SIZE = 20_000


class SearchSettings(Settings):
    """Settings of the search tool. The budget in tokens, `limits.max_obs_tokens`, is the loop's to keep."""

    top_k: int = Field(default=5, ge=1)
    passage: str = "[{n}] {title}\n{text}"
    """How a passage is shown; `{n}`, `{title}`, `{text}` and `{url}` are filled in."""
    max_query_chars: int = Field(default=2000, ge=1)
    max_passage_chars: int = Field(default=5000, ge=1)
    """A longer passage is cut before it is tokenised."""
    retry: RetrySettings = RetrySettings()

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


class SearchTool:
    """A `Tool` over anything with `retrieve(queries, top_k)`. Answers are cached: a corpus does not change in a run."""

    name = "search"

    def __init__(self, retriever: Retriever, settings: SearchSettings | None = None) -> None:
        self._retriever = retriever
        self._settings = settings or SearchSettings()
        self._cache: dict[str, ToolResult] = {}

    async def call(self, argument: str) -> ToolResult:
        query = checked_argument(argument, "query", self._settings.max_query_chars)
        if isinstance(query, ToolResult):
            return query
        if query in self._cache:
            return self._cache[query]
        try:
            hits = await call_with_retries(
                lambda: self._retriever.retrieve([query], self._settings.top_k)[0], self._settings.retry
            )
        except Unavailable as error:
            return unavailable(error)
        result = self._show(hits)
        if len(self._cache) < _CACHE_SIZE:
            self._cache[query] = result
        return result

    def _show(self, hits: list[Hit]) -> ToolResult:
        if not hits:
            return ToolResult(notice="nothing was found")
        cut, template = self._settings.max_passage_chars, self._settings.passage
        passages = (
            template.format(n=n, title=hit.document.title, text=hit.document.text[:cut], url=hit.document.url or "")
            for n, hit in enumerate(hits, start=1)
        )
        return ToolResult(passages=tuple(passages))
