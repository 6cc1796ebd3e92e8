"""A deadline holds from the look-up of the name on, and a process ends whatever a server does (see test_faults.py)."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import mempo
from tests.faults import FAULTS, faulty
from tests.http.clients import CLIENTS, KEYS

TIMEOUT_S = 0.1
CEILING_S = 5.0
"""Generous: the machine may be busy."""


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in KEYS:
        monkeypatch.setenv(name, "a-key-of-ours")


@pytest.mark.parametrize("client", ["search", "model_server", "judge", "web_search", "page_service", "probe"])
def test_a_handshake_is_part_of_the_request(client: str) -> None:
    with faulty() as proxy:  # which waits for the end of a request that is none
        ask = CLIENTS[client](proxy.url.replace("http:", "https:"), TIMEOUT_S)
        began = time.monotonic()
        said = ask().text
        assert time.monotonic() - began < CEILING_S
    assert f"within {TIMEOUT_S} s" in said


@pytest.mark.parametrize("client", ["search", "model_server", "judge", "web_search", "probe"])
def test_the_look_up_of_a_name_is_part_of_the_request(client: str, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    def hang(*_: object, **__: object) -> list[object]:
        released.wait(20)
        return []

    monkeypatch.setattr("mempo.http.addresses.socket.getaddrinfo", hang)
    began = time.monotonic()
    try:
        said = CLIENTS[client]("http://some.example:80", TIMEOUT_S)().text
        assert time.monotonic() - began < CEILING_S
    finally:
        released.set()
    assert "http://some.example:80" in said
    assert f"within {TIMEOUT_S} s" in said


RETRIEVAL = """
import asyncio, sys
from mempo.retrieval.client import HttpRetriever
from mempo.config.tools import RetrySettings
from mempo.tools.search import SearchSettings, SearchTool

retriever = HttpRetriever(sys.argv[1], timeout_s=0.3, tries=1)
print(asyncio.run(SearchTool(retriever, SearchSettings(retry=RetrySettings(tries=1))).call("q")).notice)
"""

MODEL = """
import asyncio, sys
from mempo.engine.server.client import OpenAIClient
from mempo.config.server import ServerSettings
from mempo.config.tools import RetrySettings

client = OpenAIClient(ServerSettings(url=sys.argv[1], timeout_s=0.3, retry=RetrySettings(tries=1)))
for ask in (lambda: client.get_now("/models", str), lambda: asyncio.run(client.post("/completions", {}, str))):
    try:
        ask()
    except Exception as error:
        print(error)
"""

OWN_TOOL = """
import asyncio, sys, threading
from mempo.config.tools import RetrySettings
from mempo.tools.search import SearchSettings, SearchTool

class Hangs:
    def retrieve(self, queries, top_k):
        threading.Event().wait()

async def main():
    try:
        await asyncio.wait_for(SearchTool(Hangs(), SearchSettings(retry=RetrySettings(tries=1))).call("q"), 0.3)
    except TimeoutError:
        print("no whole reply within 0.3 s")

asyncio.run(main())
"""


@pytest.mark.parametrize("program", [RETRIEVAL, MODEL, OWN_TOOL], ids=["retrieval", "model", "own_tool"])
def test_a_process_ends_while_a_server_goes_on(program: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(mempo.__file__).parents[1])}
    with faulty() as proxy:
        proxy.fault = FAULTS["drips headers"]
        words = [sys.executable, "-c", program, proxy.url]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "no whole reply within 0.3 s" in done.stdout
