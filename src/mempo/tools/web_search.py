"""Web search: one small interface, and the one provider that many services imitate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from mempo.config.base import is_import_path
from mempo.config.tools import WebSearchSettings
from mempo.errors import ConfigError
from mempo.http.client import JSON, HttpClient
from mempo.http.errors import HttpError
from mempo.http.secrets import required_key
from mempo.retrieval.document import Document, Hit
from mempo.rollout.plugins import call_own, load_own
from mempo.storage.jsonl import valid_text
from mempo.tools.call import BadCall

_REFUSED_QUERY = frozenset({400, 413, 414, 422})


@runtime_checkable
class SearchProvider(Protocol):
    """A search engine. Called from threads, many at once; whatever it raises is tried again and then a failed call."""

    def search(self, query: str, count: int) -> list[Document]:
        """At most `count` results, best first: title, snippet as text, and url."""
        ...


class WebSearch:
    """A provider as the search tool asks it; scores are 1 / rank."""

    def __init__(self, provider: SearchProvider) -> None:
        self._provider = provider

    def retrieve(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
        return [
            [Hit(document, 1 / rank) for rank, document in enumerate(self._provider.search(query, top_k)[:top_k], 1)]
            for query in queries
        ]


class SerperProvider:
    """`POST endpoint {"q", "num"}` with the header X-API-KEY → `{"organic": [{"title", "link", "snippet"}]}`."""

    def __init__(self, settings: WebSearchSettings) -> None:
        """Raises UserError when the key is not in the environment."""
        key = required_key(settings.key_variable, "search.source=web")
        self._http = HttpClient(
            "web search",
            settings.endpoint,
            settings.timeout_s,
            settings.max_reply_bytes,
            headers={**JSON, "x-api-key": key},
            secret=key,
        )

    def search(self, query: str, count: int) -> list[Document]:
        """See SearchProvider. Raises BadCall for a query that the service refuses, HttpError when it fails."""
        try:
            organic = self._http.ask_now("POST", "", {"q": valid_text(query), "num": count}, _organic)
        except HttpError as error:
            if error.status in _REFUSED_QUERY:
                raise BadCall(f"the search engine refuses this query: HTTP {error.status}") from None
            raise
        return [_result(item) for item in organic if item.get("link")][:count]


def _organic(body: Any) -> list[dict[str, Any]]:
    organic = body.get("organic", []) if isinstance(body, dict) else None
    if not isinstance(organic, list) or not all(isinstance(item, dict) for item in organic):
        raise ValueError('the reply has no list "organic" of objects')
    return organic


def make_provider(settings: WebSearchSettings) -> SearchProvider:
    """Raises ConfigError: an unknown provider, or an own one that is none; UserError: no key."""
    if settings.provider == "serper":
        return SerperProvider(settings)
    what = "search.web.provider"
    if not is_import_path(settings.provider):
        raise ConfigError(f"{what}: unknown provider {settings.provider!r}; write serper or package.module:factory")
    made = call_own(f"{what}: {settings.provider}", load_own(settings.provider, what))
    if not isinstance(made, SearchProvider):
        raise ConfigError(f"{what}: {settings.provider} returned a {type(made).__name__} without search(query, count)")
    return made


def _result(item: dict[str, Any]) -> Document:
    link, title, snippet = (valid_text(str(item.get(key) or "")) for key in ("link", "title", "snippet"))
    return Document(link, title, snippet, link)
