"""`<access>url</access>`: a whole page of the corpus. The live web is another tool."""

from __future__ import annotations

from pydantic import Field

from mempo.interfaces import ToolResult
from mempo.retrieval.types import Retriever
from mempo.settings import Settings
from mempo.tools.retrying import RetrySettings, Unavailable, bad_call, call_with_retries, checked_argument, unavailable


class AccessSettings(Settings):
    """Settings of the page tool."""

    max_url_chars: int = Field(default=2000, ge=1)
    max_page_chars: int = Field(default=20_000, ge=1)
    """A longer page is cut before it is tokenised."""
    retry: RetrySettings = RetrySettings()


class AccessTool:
    """A `Tool` over anything with `access(urls)`."""

    name = "access"

    def __init__(self, retriever: Retriever, settings: AccessSettings | None = None) -> None:
        self._retriever = retriever
        self._settings = settings or AccessSettings()

    async def call(self, argument: str) -> ToolResult:
        url = checked_argument(argument, "url", self._settings.max_url_chars)
        if isinstance(url, ToolResult):
            return url
        try:
            page = await call_with_retries(lambda: self._retriever.access([url])[0], self._settings.retry)
        except Unavailable as error:
            return unavailable(error)
        if page is None:
            return bad_call("error: no page has this url")
        return ToolResult(passages=(f"{page.title}\n{page.text[: self._settings.max_page_chars]}",))
