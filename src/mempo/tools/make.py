"""The tools of a configuration: built-in ones, and those of the user's own by import path."""

from __future__ import annotations

from collections.abc import Iterable

from mempo.config.tools import AccessSettings, SearchSettings
from mempo.errors import ConfigError
from mempo.retrieval.document import Retriever
from mempo.rollout.interfaces import DescribedTool, Tool
from mempo.rollout.plugins import call_own, load_own
from mempo.rollout.protocol import RESERVED_TAGS, can_be_tag, closing, opening
from mempo.tools.access import AccessTool
from mempo.tools.search import SearchTool

BUILT_IN = ("search", "access")
"""Tags that every policy is taught anyway."""


def make_tool(name: str, retriever: Retriever | None, search: SearchSettings, access: AccessSettings) -> Tool:
    """The tool `search` or `access` over what its source names.

    Raises:
        ConfigError: there is no corpus, or a provider that is none; UserError: a key or a library is missing.
    """
    source = search.source if name == "search" else access.source
    if source == "web":
        # The libraries of the web are loaded for those who use it.
        from mempo.tools.web import WebPages, make_reader
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


def own_tool(path: str) -> Tool:
    """The tool that an import path makes.

    Raises:
        ConfigError: it is no tool, its tag cannot be one or means something else, or a tag of its own comes without a
            description.
    """
    tool = call_own(f"agent.tools: {path}", load_own(path, "agent.tools"))
    name = getattr(tool, "name", None)
    if not isinstance(tool, Tool) or not isinstance(name, str):
        raise ConfigError(
            f"agent.tools: {path} returned {name or type(tool).__name__!r}; a tool has an async `call(argument)` and a "
            "`name`, the tag it answers"
        )
    if name in RESERVED_TAGS:
        raise ConfigError(f"agent.tools: {path} answers {name!r}, but that tag means something else; name it otherwise")
    if not can_be_tag(name):
        raise ConfigError(
            f"agent.tools: {path} answers {name!r}, which cannot be a tag: give a small letter, then small letters, "
            "digits, _"
        )
    described = isinstance(tool, DescribedTool) and isinstance(tool.description, str) and tool.description.strip()
    if name not in BUILT_IN and not described:
        raise ConfigError(
            f"agent.tools: {path} answers {name!r} but has no `description`; say in a sentence what goes between its "
            "tags and what comes back, so that the policy can be told"
        )
    return tool


def told(tools: Iterable[Tool]) -> str:
    """What the policy is told of tools that describe themselves; empty where none does."""
    lines = [
        f"- {opening(tool.name)}…{closing(tool.name)}: {tool.description.strip()}"
        for tool in tools
        if isinstance(tool, DescribedTool)
    ]
    return "\n".join(["Beside the actions you know, a turn may end with:", *lines]) if lines else ""
