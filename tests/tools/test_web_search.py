"""Web search against a fake of the JSON that search services speak."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from mempo.config.tools import RetrySettings, SearchSettings, WebSearchSettings
from mempo.errors import ConfigError, UserError
from mempo.http.errors import HttpError
from mempo.retrieval.document import Document, Hit
from mempo.rollout.interfaces import ToolErrorKind, ToolResult
from mempo.tools.search import SearchTool
from mempo.tools.web_search import SearchProvider, SerperProvider, WebSearch, make_provider
from tests.tools.fake_web import FakeWeb, Reply

KEY = "MY_SEARCH_KEY"


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, "s3cret")


def settings(web: FakeWeb, **changes: Any) -> WebSearchSettings:
    return WebSearchSettings(**{"endpoint": web.url("/search", "127.0.0.1"), "key_variable": KEY, **changes})


def organic(*results: dict[str, Any]) -> Reply:
    return Reply(body=json.dumps({"searchParameters": {}, "organic": list(results)}).encode())


PARIS = {"title": "Paris", "link": "https://w/Paris", "snippet": "The capital of France.", "position": 1}


def call(web: FakeWeb, query: str, **changes: Any) -> ToolResult:
    tool = SearchTool(
        WebSearch(SerperProvider(settings(web, **changes))),
        SearchSettings(source="web", top_k=2, retry=RetrySettings(tries=3, backoff_s=0)),
    )
    return asyncio.run(tool.call(query))


def test_a_query_is_asked_and_its_results_are_passages(web: FakeWeb) -> None:
    web.pages["/search"] = organic(PARIS, {"title": "no link"}, {"link": "https://w/x"}, {"link": "https://w/y"})
    result = call(web, "capital of \ud83d France")
    assert result.passages == ("[1] Paris\nThe capital of France.", "[2] \n")
    [asked] = web.requests
    assert json.loads(asked.body) == {"q": "capital of \ufffd France", "num": 2}
    assert (asked.method, asked.headers["x-api-key"]) == ("POST", "s3cret")
    web.pages["/search"] = Reply(body=b"{}")
    assert call(web, "zz").notice == "nothing was found"


def test_hits_are_documents_with_ranks_for_scores(web: FakeWeb) -> None:
    web.pages["/search"] = organic(PARIS, {**PARIS, "link": "https://w/2", "snippet": None})
    hits = WebSearch(SerperProvider(settings(web))).retrieve(["q"], 5)[0]
    assert hits == [
        Hit(Document("https://w/Paris", "Paris", "The capital of France.", "https://w/Paris"), 1.0),
        Hit(Document("https://w/2", "Paris", "", "https://w/2"), 0.5),
    ]


@pytest.mark.parametrize(
    ("reply", "said", "requests"),
    [
        (Reply(500, b"<html>oops"), "status 500, first bytes: <html>oops", 3),
        (Reply(429), "status 429, first bytes: (empty body)", 3),
        (Reply(403, b'{"message": "Unauthorized."}'), "HTTP 403", 1),
        (Reply(302, headers={"location": "http://evil.test/"}), "HTTP 302", 1),
        (Reply(body=b"<html>200 and no JSON"), "status 200, first bytes: <html>200", 3),
        (Reply(body=b"[]"), 'no list "organic"', 1),
        (Reply(body=b'{"organic": ["x"]}'), 'no list "organic"', 1),
        (Reply(body=b" " * 3000), "longer than 2000 bytes", 1),
        (Reply(0), "no whole reply within 0.2 s", 3),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_failures_are_told_without_the_key(web: FakeWeb, reply: Reply, said: str, requests: int) -> None:
    web.pages["/search"] = reply
    result = call(web, "q", timeout_s=0.2, max_reply_bytes=2000)
    assert result.error is ToolErrorKind.UNAVAILABLE
    assert said in result.notice
    assert web.url("/search", "127.0.0.1") in result.notice
    assert "s3cret" not in result.notice
    assert len(web.requests) == requests


def test_a_service_may_ask_for_time(web: FakeWeb) -> None:
    web.pages["/search"] = Reply(429, headers={"retry-after": "7"})
    with pytest.raises(HttpError) as caught:
        SerperProvider(settings(web)).search("q", 1)
    assert (caught.value.transient, caught.value.retry_after_s) == (True, 7.0)


def test_a_key_is_read_from_the_environment_or_asked_for(web: FakeWeb, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY)
    with pytest.raises(UserError, match=f"environment variable {KEY}"):
        SerperProvider(settings(web))
    monkeypatch.setenv(KEY, "schlüssel")
    with pytest.raises(UserError, match=f"{KEY} holds characters"):
        SerperProvider(settings(web))
    assert "s3cret" not in WebSearchSettings().model_dump_json()


class OwnProvider:
    def search(self, query: str, count: int) -> list[Document]:
        return [Document(str(n), query, "own") for n in range(count + 5)]


class NoProvider:
    pass


def test_an_own_provider_by_import_path() -> None:
    made = make_provider(WebSearchSettings(provider=f"{__name__}:OwnProvider"))
    assert isinstance(made, SearchProvider)
    assert len(WebSearch(made).retrieve(["q"], 3)[0]) == 3
    with pytest.raises(ConfigError, match="without search"):
        make_provider(WebSearchSettings(provider=f"{__name__}:NoProvider"))
    with pytest.raises(ConfigError, match="unknown provider 'serpr'"):
        make_provider(WebSearchSettings(provider="serpr"))
