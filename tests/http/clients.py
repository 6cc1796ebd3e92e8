"""Every client of mempo against one address: what it sends goes there, and what it was told comes back as text."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from mempo.config.server import ServerSettings
from mempo.config.tools import WebPageSettings, WebSearchSettings
from mempo.engine.server.capabilities import Capabilities
from mempo.engine.server.client import OpenAIClient
from mempo.engine.server.sampler import OpenAISampler
from mempo.evaluate.llm_judge import Asked, Judge, JudgeSettings
from mempo.retrieval.client import HttpRetriever, token_from_environment
from mempo.rollout.interfaces import SamplerError, SamplingParams, ToolResult
from mempo.tools.access import AccessSettings, AccessTool
from mempo.tools.retrying import RetrySettings
from mempo.tools.search import SearchSettings, SearchTool
from mempo.tools.web import ApiReader, DirectReader, WebPages
from mempo.tools.web_search import SerperProvider, WebSearch
from tests.tiny import make_tokenizer

ONCE = RetrySettings(tries=1, backoff_s=0)
KEYS = ("MEMPO_RETRIEVAL_TOKEN", "OPENAI_API_KEY", "SERPER_API_KEY", "JINA_API_KEY")
"""The environment variables that the clients read."""

TOKENIZER = make_tokenizer()


def told(result: ToolResult) -> str:
    return repr((result.passages, result.notice))


def search(url: str, timeout_s: float) -> str:
    retriever = HttpRetriever(url, timeout_s, tries=1, token=token_from_environment())
    return told(asyncio.run(SearchTool(retriever, SearchSettings(retry=ONCE)).call("q")))


def access(url: str, timeout_s: float) -> str:
    retriever = HttpRetriever(url, timeout_s, tries=1, token=token_from_environment())
    return told(asyncio.run(AccessTool(retriever, AccessSettings(retry=ONCE)).call("http://a/")))


def web_search(url: str, timeout_s: float) -> str:
    provider = SerperProvider(WebSearchSettings(endpoint=f"{url}/search", timeout_s=timeout_s))
    return told(asyncio.run(SearchTool(WebSearch(provider), SearchSettings(retry=ONCE)).call("q")))


def page_service(url: str, timeout_s: float) -> str:
    settings = WebPageSettings(endpoint=f"{url}/read/", timeout_s=timeout_s, reader="api")
    reader = ApiReader(settings, lambda host, port: ["93.184.216.34"])
    return told(asyncio.run(AccessTool(WebPages(reader), AccessSettings(retry=ONCE)).call("http://site.test/")))


def web_page(url: str, timeout_s: float) -> str:
    port = int(url.rsplit(":", 1)[1])
    reader = DirectReader(WebPageSettings(timeout_s=timeout_s, ports=(port,)), lambda host, port: ["127.0.0.1"])
    page = url.replace("127.0.0.1", "site.test")
    return told(asyncio.run(AccessTool(WebPages(reader), AccessSettings(retry=ONCE)).call(page)))


def server(url: str, timeout_s: float) -> OpenAIClient:
    return OpenAIClient(ServerSettings(url=url, timeout_s=timeout_s, retry=ONCE))


def model_server(url: str, timeout_s: float, **can: Any) -> str:
    client = server(url, timeout_s)
    sampler = OpenAISampler(client, TOKENIZER, Capabilities(client.base, "m", **{"api": "completions", **can}))
    try:
        return TOKENIZER.decode(asyncio.run(sampler.generate((5, 6), SamplingParams(400))).ids)
    except SamplerError as error:
        return str(error)


def model_server_with_ids(url: str, timeout_s: float) -> str:
    return model_server(url, timeout_s, returns_ids=True)


def judge(url: str, timeout_s: float) -> str:
    client = server(url, timeout_s)
    settings = JudgeSettings(server=client.settings)
    [found] = Judge(client, Capabilities(client.base, "m", "chat"), settings).judge([Asked("q", "Paris", "Rome")])
    return found.reason


def probe(url: str, timeout_s: float) -> str:
    """Asked by a plain function."""
    try:
        return server(url, timeout_s).get_now("/models", str)
    except Exception as error:
        return str(error)


CLIENTS: dict[str, Callable[[str, float], str]] = {
    "search": search,
    "access": access,
    "web_search": web_search,
    "page_service": page_service,
    "web_page": web_page,
    "model_server": model_server,
    "model_server_with_ids": model_server_with_ids,
    "judge": judge,
    "probe": probe,
}
