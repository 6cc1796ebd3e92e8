"""`mempo serve` as a process: signals, workers, and many clients at once."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from mempo.config.overrides import settings_from
from mempo.config.retrieval import ServiceSettings
from mempo.errors import UserError
from mempo.retrieval.corpus import Corpus, Document
from mempo.retrieval.index import Bm25Index
from mempo.retrieval.server.app import create_app
from mempo.retrieval.server.run import for_index, has_titles, is_loopback, serve
from mempo.retrieval.server.wire import found, result
from tests.retrieval.serving import serving


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    documents = [Document(str(n), f"City {n}", f"a city called number{n} of group{n % 7}") for n in range(300)]
    Bm25Index.build(Corpus.from_documents(documents, folder / "c"), folder / "i")
    return folder / "i"


@contextmanager
def process(
    index: Path, *options: str, port: int | None = None, **environment: str
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server, on a free port unless one is named, and its address, once it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = port or free.getsockname()[1]
    command = [sys.executable, "-m", "mempo.cli.main", "serve", str(index), "--port", str(port), *options]
    started = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment})
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            assert started.poll() is None, started.communicate()[1]
            try:
                if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                    break
            except httpx.TransportError:
                time.sleep(0.05)
        else:
            raise AssertionError("the server does not answer")
        yield started, url
    finally:
        started.kill()
        started.wait()


# --- without a process ---------------------------------------------------------------------------------------------


def test_limits_from_the_command_line() -> None:
    assert settings_from(ServiceSettings, ["max_queries=7", "cache_mib=0.5"]) == ServiceSettings(
        max_queries=7, cache_mib=0.5
    )
    for override, said in (
        ("max_querys=7", "did you mean 'max_queries'?"),
        ("max_queries", "write key=value"),
        ("max_queries=many", "max_queries: Input should be a valid integer"),
        ("default_top_k=5000", "above max_top_k"),
    ):
        with pytest.raises(UserError, match=said.replace("?", r"\?")):
            settings_from(ServiceSettings, [override])


def test_a_lexical_index_is_asked_in_small_batches_unless_told_otherwise() -> None:
    assert for_index(ServiceSettings(), "bm25").max_batch_queries == 8
    assert for_index(ServiceSettings(), "faiss").max_batch_queries == 64
    assert for_index(settings_from(ServiceSettings, ["max_batch_queries=64"]), "bm25").max_batch_queries == 64


def test_loopback() -> None:
    assert all(is_loopback(host) for host in ("127.0.0.1", "127.8.0.1", "localhost", "::1"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "example.org"))


def test_the_first_row_tells_whether_rows_have_titles(tmp_path: Path) -> None:
    for row, titles in (({"title": "T", "text": "x"}, True), ({"contents": '"T"\nx'}, False)):
        (tmp_path / "c.jsonl").write_text("\n" + json.dumps(row) + "\n", encoding="utf-8")
        assert has_titles(Corpus.open(tmp_path / "c.jsonl")) is titles


def test_an_address_that_cannot_be_had_is_one_line(index: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UserError, match="choose another --port"):
            serve(index, port=taken.getsockname()[1], say=lambda line: None)
    with pytest.raises(UserError, match=r"192\.0\.2\.1"):
        serve(index, host="192.0.2.1", port=0, say=lambda line: None)
    with pytest.raises(UserError, match="not an address of this machine"):
        serve(index, host="no such host", port=0, say=lambda line: None)


# --- many clients --------------------------------------------------------------------------------------------------


async def _ask_all(url: str, bodies: list[bytes], clients: int) -> dict[int, bytes]:
    """Every body's reply, by place, asked over `clients` kept connections."""
    host, port = url.removeprefix("http://").split(":")
    replies: dict[int, bytes] = {}
    places = iter(range(len(bodies)))

    async def client() -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        for place in places:
            head = f"POST /retrieve HTTP/1.1\r\nhost: x\r\ncontent-length: {len(bodies[place])}\r\n\r\n"
            writer.write(head.encode() + bodies[place])
            answer = (await reader.readuntil(b"\r\n\r\n")).lower()
            assert answer.startswith(b"http/1.1 200"), answer
            length = int(answer.split(b"content-length: ")[1].split(b"\r\n")[0])
            assert place not in replies
            replies[place] = await reader.readexactly(length)
        writer.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    return replies


@pytest.mark.slow
@pytest.mark.parametrize("cache_mib", [64.0, 0.0])
def test_ten_thousand_requests_of_64_clients_are_each_answered_right(index: Path, cache_mib: float) -> None:
    opened = Bm25Index.load(index)
    asked = [([f"number{n % 300}", f"city group{n % 7}"], 1 + n % 3, n % 2 == 0) for n in range(10_000)]
    keys = [("queries", "topk", "return_scores")] * len(asked)
    bodies = [json.dumps(dict(zip(key, each, strict=True))).encode() for key, each in zip(keys, asked, strict=True)]
    known: dict[tuple[str, int], Any] = {}
    with serving(create_app(opened, ServiceSettings(cache_mib=cache_mib))) as url:
        replies = asyncio.run(_ask_all(url, bodies, clients=64))
    assert len(replies) == 10_000
    for place, (queries, top_k, scores) in enumerate(asked):
        for query in queries:
            if (query, top_k) not in known:
                known[query, top_k] = found(opened.retrieve([query], top_k)[0], titles=False)
        answers = [known[query, top_k] for query in queries]
        assert replies[place] == result([each.scored if scores else each.plain for each in answers])


# --- processes -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_sigterm_answers_what_is_under_way_and_ends_well(index: Path) -> None:
    # Queries of thousands of words keep the index busy for a while.
    queries = [" ".join(f"number{n}" for n in range(k, k + 300)) for k in range(2000)]
    replies: list[httpx.Response] = []
    with process(index) as (server, url):
        assert f"serving 300 documents (bm25) of {index} at {url} (1 worker)" in _first_line(server)

        def ask() -> None:
            replies.append(httpx.post(f"{url}/retrieve", json={"queries": queries, "topk": 1}, timeout=60))

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        while "waiting_queries 6000.0" not in httpx.get(f"{url}/metrics", timeout=30).text:
            assert not replies, "the requests were answered before the signal: make them longer"
        server.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join()
        assert [(reply.status_code, len(reply.json()["result"])) for reply in replies] == [(200, 2000)] * 3
        assert server.wait(30) == 0
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{url}/health", timeout=5)


SLOW = """
import sys, threading
from pathlib import Path
from mempo.retrieval.server import run as service_run
from mempo.config.retrieval import ServiceSettings

class Slow:
    def retrieve(self, queries, top_k):
        print("asked", file=sys.stderr, flush=True)
        threading.Event().wait()

service_run.open_index = lambda folder: Slow()
service_run.serve(
    Path(sys.argv[1]), port=0, settings=ServiceSettings(drain_s=1), say=lambda line: print(line, file=sys.stderr)
)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_that_cannot_wait_any_longer_leaves_no_trace(index: Path, number: signal.Signals) -> None:
    server = subprocess.Popen([sys.executable, "-c", SLOW, str(index)], stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    try:
        url = server.stderr.readline().split(" at ")[1].split()[0]
        replies: list[httpx.Response] = []

        def post() -> None:
            while not replies and server.poll() is None:
                with suppress(httpx.ConnectError):  # it does not listen yet
                    replies.append(httpx.post(f"{url}/retrieve", json={"queries": ["a"]}, timeout=60))

        ask = threading.Thread(target=post)
        ask.start()
        assert server.stderr.readline() == "asked\n"
        server.send_signal(number)
        ask.join()
        said = server.communicate(timeout=60)[1]
    finally:
        server.kill()
        server.wait()
    assert (replies[0].status_code, replies[0].json()["error"]["kind"]) == (503, "stopping")
    assert server.returncode == 0
    assert "Traceback" not in said


@pytest.mark.slow
def test_workers_share_a_socket_and_their_counts(index: Path) -> None:
    with process(index, "--workers", "2", MEMPO_RETRIEVAL_TOKEN="s3cret") as (server, url):
        headers = {"authorization": "Bearer s3cret"}
        assert httpx.post(f"{url}/retrieve", json={"queries": ["x"]}).status_code == 401
        for n in range(20):  # a new connection each time: any of the two may take it
            reply = httpx.post(f"{url}/retrieve", json={"queries": [f"number{n}"], "topk": 1}, headers=headers)
            assert reply.json()["result"][0][0]["id"] == str(n)
        text = httpx.get(f"{url}/metrics", headers=headers).text
        assert 'mempo_retrieval_requests_total{path="/retrieve",status="200"} 20.0' in text
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 0


@pytest.mark.slow
def test_other_machines_without_a_token_are_warned_of(index: Path) -> None:
    with process(index, "--host", "0.0.0.0") as (server, _):
        server.send_signal(signal.SIGINT)
        said = server.communicate(timeout=30)[1]
    assert "warning: 0.0.0.0 can be reached from other machines" in said
    assert "MEMPO_RETRIEVAL_TOKEN" in said
    assert server.returncode == 0


def _first_line(server: subprocess.Popen[str]) -> str:
    assert server.stderr is not None
    return server.stderr.readline()
