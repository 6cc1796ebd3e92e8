"""The built-in tools of a configuration."""

from __future__ import annotations

from mempo.config.tools import AccessSettings, SearchSettings
from mempo.errors import ConfigError
from mempo.interfaces import Tool
from mempo.retrieval.types import Retriever
from mempo.tools.access import AccessTool
from mempo.tools.search import SearchTool


def make_tool(name: str, retriever: Retriever | None, search: SearchSettings, access: AccessSettings) -> Tool:
    """The tool `search` or `access` over what its source names.

    Raises:
        ConfigError: there is no corpus, or a provider that is none; UserError: a key or a library is missing.
    """
    source = search.source if name == "search" else access.source
    if source == "web":
        # The libraries of the web are loaded for those who use it.
        from mempo.tools.web_pages import WebPages, make_reader
        from mempo.tools.web_search import WebSearch, make_provider

        if name == "search":
            return SearchTool(WebSearch(make_provider(search.web)), search)
        return AccessTool(WebPages(make_reader(access.web)), access)
    if retriever is None:
        raise ConfigError(
            f"agent.tools: {name} has nothing to search; set data.corpus, data.index or data.server, "
            f"{name}.source=web, or leave the tool out (agent.tools=[])"
        )
    return SearchTool(retriever, search) if name == "search" else AccessTool(retriever, access)
