"""From a configuration to the tools: corpus or web, and what is missing is said at once."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Sequence
from typing import Any

import pytest

from mempo.config import resolve
from mempo.errors import ConfigError, UserError
from mempo.retrieval.document import Document, Hit
from mempo.setup import make_tools
from mempo.tools.access import AccessTool
from mempo.tools.search import SearchTool


class Library:
    def retrieve(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
        return [[Hit(Document("1", "from the", "corpus"), 1.0)] for _ in queries]

    def access(self, urls: Sequence[str]) -> list[Document | None]:
        return [Document("1", "from the", "corpus") for _ in urls]


class Engine:
    """A search engine and a reader of pages, by import path."""

    def search(self, query: str, count: int) -> list[Document]:
        return [Document("1", "from the", "web")]

    def read(self, url: str) -> Document:
        return Document("1", "from the", "web")


def tools(*overrides: str, retriever: Any = None) -> dict[str, Any]:
    return make_tools(resolve(None, overrides).config, retriever)


def found(tool: Any) -> str:
    return asyncio.run(tool.call("http://x")).passages[0].split("\n")[-1]


def test_the_corpus_unless_the_web_is_asked_for() -> None:
    made = tools(retriever=Library())
    assert isinstance(made["search"], SearchTool)
    assert isinstance(made["access"], AccessTool)
    assert [found(tool) for tool in made.values()] == ["corpus", "corpus"]
    own = f"{__name__}:Engine"
    web = ("search.source=web", f"search.web.provider={own}", "access.source=web", f"access.web.reader={own}")
    assert [found(tool) for tool in tools(*web, retriever=Library()).values()] == ["web", "web"]
    assert [found(tool) for tool in tools(*web).values()] == ["web", "web"], "and then no corpus is needed"
    assert [found(tool) for tool in tools(*web[:2], retriever=Library()).values()] == ["web", "corpus"]


def test_what_is_missing_is_said_before_anything_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"search has nothing to search; set data\.corpus.*search\.source=web"):
        tools()
    monkeypatch.delenv("SERPER_API_KEY", raising=False)
    with pytest.raises(UserError, match="SERPER_API_KEY"):
        tools("search.source=web", retriever=Library())

    def without(name: str, *arguments: Any, **keywords: Any) -> Any:
        if name == "trafilatura":
            raise ImportError("no module named trafilatura")
        return imported(name, *arguments, **keywords)

    imported = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match=r'pip install "mempo\[web\]"'):
        tools("access.source=web", retriever=Library())


def test_the_web_alone_is_enough_to_train_on_a_file_of_questions() -> None:
    web = ("search.source=web", "access.source=web")
    config = resolve(None, ["data.train=questions.jsonl", *web]).config
    assert config.data.corpus is None
    with pytest.raises(ConfigError, match="nothing to search"):
        resolve(None, ["data.train=questions.jsonl", web[0]])
