"""Every client of mempo against one address: what it sends goes there, and what it was told comes back as text."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mempo.config.server import ServerSettings
from mempo.config.tools import RetrySettings, WebPageSettings, WebSearchSettings
from mempo.engine.server.capabilities import Capabilities
from mempo.engine.server.client import OpenAIClient
from mempo.engine.server.sampler import OpenAISampler
from mempo.errors import UserError
from mempo.evaluate.llm_judge import Asked, Judge, JudgeSettings
from mempo.retrieval.client import HttpRetriever, token_from_environment
from mempo.rollout.interfaces import SamplerError, SamplingParams, Tool
from mempo.tools.access import AccessSettings, AccessTool
from mempo.tools.search import SearchSettings, SearchTool
from mempo.tools.web import ApiReader, DirectReader, WebPages
from mempo.tools.web_search import SerperProvider, WebSearch
from tests.tiny import make_tokenizer

KEYS = ("MEMPO_RETRIEVAL_TOKEN", "OPENAI_API_KEY", "SERPER_API_KEY", "JINA_API_KEY")
"""The environment variables that the clients read."""

TOKENIZER = make_tokenizer()


@dataclass(frozen=True)
class Told:
    """`good`: whether it was a reply, and not a failure; `text`: all that the client was told."""

    good: bool
    text: str


Ask = Callable[[], Told]


def trying(tries: int) -> RetrySettings:
    return RetrySettings(tries=tries, backoff_s=0)


ONCE = trying(1)


def asks(tool: Tool, argument: str = "http://site.test/{n}") -> Ask:
    """Something else each time: what was found is remembered."""
    numbers = itertools.count()

    def ask() -> Told:
        result = asyncio.run(tool.call(argument.format(n=next(numbers))))
        return Told(result.error is None, repr((result.passages, result.notice)))

    return ask


def search(url: str, timeout_s: float, tries: int = 1) -> Ask:
    retriever = HttpRetriever(url, timeout_s, tries=1, token=token_from_environment())
    return asks(SearchTool(retriever, SearchSettings(retry=trying(tries))))


def access(url: str, timeout_s: float, tries: int = 1) -> Ask:
    retriever = HttpRetriever(url, timeout_s, tries=1, token=token_from_environment())
    return asks(AccessTool(retriever, AccessSettings(retry=trying(tries))))


def web_search(url: str, timeout_s: float, tries: int = 1) -> Ask:
    provider = SerperProvider(WebSearchSettings(endpoint=f"{url}/search", timeout_s=timeout_s))
    return asks(SearchTool(WebSearch(provider), SearchSettings(retry=trying(tries))))


def page_service(url: str, timeout_s: float, tries: int = 1) -> Ask:
    settings = WebPageSettings(endpoint=f"{url}/read/", timeout_s=timeout_s, reader="api")
    reader = ApiReader(settings, lambda host, port: ["93.184.216.34"])
    return asks(AccessTool(WebPages(reader), AccessSettings(retry=trying(tries))))


def web_page(url: str, timeout_s: float, tries: int = 1) -> Ask:
    port = int(url.rsplit(":", 1)[1])
    reader = DirectReader(WebPageSettings(timeout_s=timeout_s, ports=(port,)), lambda host, port: ["127.0.0.1"])
    page = url.replace("127.0.0.1", "site.test")
    return asks(AccessTool(WebPages(reader), AccessSettings(retry=trying(tries))), f"{page}/{{n}}")


def server(url: str, timeout_s: float, tries: int = 1) -> OpenAIClient:
    return OpenAIClient(ServerSettings(url=url, timeout_s=timeout_s, retry=trying(tries)))


def model_server(url: str, timeout_s: float, tries: int = 1, **can: Any) -> Ask:
    client = server(url, timeout_s, tries)
    sampler = OpenAISampler(client, TOKENIZER, Capabilities(client.base, "m", **{"api": "completions", **can}))

    def ask() -> Told:
        try:
            return Told(True, TOKENIZER.decode(asyncio.run(sampler.generate((5, 6), SamplingParams(400))).ids))
        except SamplerError as error:
            return Told(False, str(error))

    return ask


def model_server_with_ids(url: str, timeout_s: float, tries: int = 1) -> Ask:
    return model_server(url, timeout_s, tries, returns_ids=True)


def judge(url: str, timeout_s: float, tries: int = 1) -> Ask:
    client = server(url, timeout_s, tries)
    judging = Judge(client, Capabilities(client.base, "m", "chat"), JudgeSettings(server=client.settings))

    def ask() -> Told:
        [found] = judging.judge([Asked("q", "Paris", "Rome")])
        return Told(found.verdict is not None, f"{found.verdict} {found.reason}")

    return ask


def probe(url: str, timeout_s: float, tries: int = 1) -> Ask:
    """Asked by a plain function."""
    client = server(url, timeout_s, tries)

    def read(reply: dict[str, Any]) -> str:
        try:
            return reply["data"][0]["id"]
        except (KeyError, TypeError, IndexError) as error:
            raise ValueError("no models") from error

    def ask() -> Told:
        try:
            return Told(True, client.get_now("/models", read))
        except UserError as error:
            return Told(False, str(error))

    return ask


CLIENTS: dict[str, Callable[..., Ask]] = {
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
"""`CLIENTS[name](url, timeout_s, tries)` opens one."""
READ_TEXT = frozenset({"page_service", "web_page"})
"""Those to whom any text is a reply."""
