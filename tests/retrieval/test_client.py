"""The HTTP client against real servers on loopback that fail in the ways servers do."""

from __future__ import annotations

import json
import pickle
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from mempo.errors import UserError
from mempo.http.errors import HttpError
from mempo.retrieval.client import HttpRetriever, token_from_environment
from mempo.retrieval.document import Document, Hit, Retriever

Reply = tuple[int, bytes] | tuple[int, bytes, dict[str, str]]
Answer = Callable[[str, dict[str, Any], int], Reply]
"""From path, body and the number of the request (from 0) to a reply."""

ROW = {"id": "7", "contents": '"Paris"\nthe capital'}
PARIS = Document("7", "Paris", "the capital")


class Server:
    """A server whose every reply is scripted; `requests` keeps what it was asked."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.tokens: set[str | None] = set()
        self.connections: set[Any] = set()
        self.answer: Answer = lambda path, body, number: (200, b"")
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 5

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                outer.requests.append((self.path, body))
                outer.tokens.add(self.headers["authorization"])
                outer.connections.add(self.client_address)
                status, content, *headers = outer.answer(self.path, body, len(outer.requests) - 1)
                if status == 0:  # hang up without a word
                    self.close_connection = True
                    return
                self.send_response(status)
                self.send_header("content-length", str(len(content)))
                for name, value in headers[0].items() if headers else ():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def result(self, result: object) -> None:
        self.answer = lambda path, body, number: (200, json.dumps({"result": result}).encode())

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def client(server: Server) -> Iterator[HttpRetriever]:
    with HttpRetriever(server.url, timeout_s=5, tries=3, backoff_s=0.001) as client:
        yield client


def free_url() -> str:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{sock.getsockname()[1]}"


def test_asks_as_the_convention_says(server: Server, client: HttpRetriever) -> None:
    server.result([[{"document": ROW, "score": 2}], []])
    assert client.retrieve(["capital", "zz"], 3) == [[Hit(PARIS, 2.0)], []]
    assert server.requests == [("/retrieve", {"queries": ["capital", "zz"], "topk": 3, "return_scores": True})]
    assert isinstance(client, Retriever)
    assert client.retrieve([], 3) == []
    assert client.access([]) == []
    assert len(server.requests) == 1, "nothing to ask, nothing sent"


@pytest.mark.parametrize(
    ("item", "hit"),
    [
        (ROW, Hit(PARIS, 0.0)),
        ({"document": ROW, "score": 0.5}, Hit(PARIS, 0.5)),
        ({"document": ROW, "score": None}, Hit(PARIS, 0.0)),
        ({"document": {"_id": 7, "title": "Paris", "text": "the capital"}, "score": 1}, Hit(PARIS, 1.0)),
        ({**ROW, "document": "odd"}, Hit(PARIS, 0.0)),
        ({"document": {**ROW, "id": -1}, "score": -3.4e38}, Hit(Document("-1", "Paris", "the capital"), -3.4e38)),
    ],
)
def test_items_with_and_without_scores(server: Server, client: HttpRetriever, item: object, hit: Hit) -> None:
    server.result([[item, item, item]])
    assert client.retrieve(["q"], 2) == [[hit, hit]], "a server that sends more than asked is cut"


def test_rows_without_id_get_the_same_one_each_time(server: Server, client: HttpRetriever) -> None:
    server.result([[{"text": "a"}, {"text": "b"}, {"text": "a"}]])
    first, second, third = (hit.document.id for hit in client.retrieve(["q"], 3)[0])
    assert first == third != second


def test_access(server: Server, client: HttpRetriever) -> None:
    server.result([{"url": "http://a", "contents": "no title\nbody"}, None, {"contents": '"T"\nx'}])
    pages = client.access(["http://a", "http://b", "http://c"])
    assert [(p.title, p.text, p.url) if p else None for p in pages] == [
        ("", "no title\nbody", "http://a"),
        None,
        ("T", "x", "http://c"),
    ]


def test_hostile_queries_reach_the_server(server: Server, client: HttpRetriever) -> None:
    server.result([[], [], []])
    client.retrieve(["a\x00b", "\ud800", "x" * 50_000], 1)
    assert server.requests[0][1]["queries"] == ["a\x00b", "\ufffd", "x" * 50_000]


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504, 0])
def test_twice_bad_then_good(server: Server, status: int) -> None:
    good = json.dumps({"result": [[ROW]]}).encode()
    server.answer = lambda path, body, number: (status, b"busy") if number < 2 else (200, good)
    with HttpRetriever(server.url, tries=5, backoff_s=0.001) as client:
        assert client.retrieve(["q"], 1) == [[Hit(PARIS, 0.0)]]
    assert len(server.requests) == 3


def test_a_token_is_sent_and_never_shown(server: Server) -> None:
    server.answer = lambda path, body, number: (401, b'{"error": {"kind": "token"}}')
    with (
        HttpRetriever(server.url, token="s3cret") as client,
        pytest.raises(HttpError, match="HTTP 401") as caught,
    ):
        client.retrieve(["q"], 1)
    assert server.tokens == {"Bearer s3cret"}
    assert "s3cret" not in str(caught.value)


def test_a_token_that_no_header_can_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for token, read in (("", None), ("  ", None), (" abc ", "abc")):
        monkeypatch.setenv("MEMPO_RETRIEVAL_TOKEN", token)
        assert token_from_environment() == read
    for token in ("a b", "a\nb", "tökén"):
        monkeypatch.setenv("MEMPO_RETRIEVAL_TOKEN", token)
        with pytest.raises(UserError, match="MEMPO_RETRIEVAL_TOKEN"):
            token_from_environment()


def test_threads_share_a_bounded_pool_of_connections(server: Server) -> None:
    lock, under_way, most = threading.Lock(), 0, 0

    def answer(path: str, body: dict[str, Any], number: int) -> Reply:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        time.sleep(0.005)
        with lock:
            under_way -= 1
        return 200, json.dumps({"result": [[{"id": body["queries"][0], "text": "t"}]]}).encode()

    server.answer = answer
    with HttpRetriever(server.url, max_concurrent=3) as client, ThreadPoolExecutor(12) as threads:
        found = threads.map(lambda n: client.retrieve([str(n)], 1)[0][0].document.id, range(60))
        assert list(found) == [str(n) for n in range(60)]
    assert 1 < most <= 3
    assert len(server.connections) <= 3


def test_a_reply_that_is_too_long_is_broken_off(server: Server) -> None:
    server.answer = lambda path, body, number: (200, b'{"result": [[' + b" " * 2_000_000 + b"]]}")
    with HttpRetriever(server.url, max_reply_bytes=1000) as client:
        with pytest.raises(HttpError, match="longer than 1000 bytes") as caught:
            client.retrieve(["q"], 1)
        assert (caught.value.kind, len(server.requests)) == ("schema", 1)
        server.result([[]])
        assert client.retrieve(["q"], 1) == [[]]


def test_html_500(server: Server, client: HttpRetriever) -> None:
    server.answer = lambda path, body, number: (500, b"<html>\xff\n\x1b[31m" + b"x" * 1000)
    with pytest.raises(HttpError) as caught:
        client.retrieve(["q"], 1)
    error = caught.value
    assert (error.kind, error.status, error.url) == ("status", 500, f"{server.url}/retrieve")
    assert error.body_head.startswith("<html>\\xff\\n\\x1b[31mxxx")
    assert error.body_head.count("x") < 205
    assert f"{server.url}/retrieve: HTTP 500 (try 3) [status; status 500, first bytes: <html>" in str(error)
    assert str(error).isprintable()
    assert len(server.requests) == 3
    assert isinstance(error, UserError)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.kind, copy.status) == (str(error), error.kind, error.status)


@pytest.mark.parametrize("status", [301, 400, 404, 422])
def test_other_statuses_are_not_tried_again(server: Server, client: HttpRetriever, status: int) -> None:
    server.answer = lambda path, body, number: (status, b"no")
    with pytest.raises(HttpError, match=rf"HTTP {status} \[status") as caught:
        client.retrieve(["q"], 1)
    assert (caught.value.kind, caught.value.status, len(server.requests)) == ("status", status, 1)


@pytest.mark.parametrize(
    "body", [b"", b"<html>200 but no JSON</html>", b'{"result": [[', b"\xff\xfe\x00", b"[" * 100_000]
)
def test_not_json(server: Server, client: HttpRetriever, body: bytes) -> None:
    server.answer = lambda path, body_, number: (200, body)
    with pytest.raises(HttpError, match=r"not JSON \(try 3\)") as caught:
        client.retrieve(["q"], 1)
    assert (caught.value.kind, caught.value.status, len(server.requests)) == ("not_json", 200, 3)
    assert ("(empty body)" in str(caught.value)) == (body == b"")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"result": []}, '"result" holds 0 entries for 1 queries'),
        ({"result": [[], []]}, '"result" holds 2 entries for 1 queries'),
        ({"result": None}, 'no list "result"'),
        ([], 'no list "result"'),
        ({"result": [None]}, "result 0 is null, not a list"),
        ({"result": [[{"document": None, "score": -3.4e38}]]}, 'item 0: a document needs "contents" or "text"'),
        ({"result": [["text"]]}, "result 0, item 0 is a string, not a document"),
        ({"result": [[ROW, {"document": {"id": "1"}, "score": 1}]]}, 'item 1: a document needs "contents" or "text"'),
        ({"result": [[{"document": ROW, "score": "high"}]]}, "the score is a string"),
        ({"result": [[{"document": ROW, "score": 10**400}]]}, "too large"),
        ({"result": [[{"contents": 5}]]}, '"contents" must be a string'),
    ],
)
def test_wrong_schema(server: Server, client: HttpRetriever, body: object, said: str) -> None:
    server.answer = lambda path, body_, number: (200, json.dumps(body).encode())
    with pytest.raises(HttpError, match="schema; status 200") as caught:
        client.retrieve(["q"], 3)
    assert caught.value.kind == "schema"
    assert said in str(caught.value)
    assert len(server.requests) == 1


def test_wrong_schema_of_pages(server: Server, client: HttpRetriever) -> None:
    for result in ([], ["text"], [{"url": "u"}]):
        server.result(result)
        with pytest.raises(HttpError, match="/access"):
            client.access(["u"])


def test_health(server: Server, client: HttpRetriever) -> None:
    server.result([[]])
    client.health()
    server.answer = lambda path, body, number: (404, b'{"detail":"Not Found"}')
    with pytest.raises(HttpError, match="HTTP 404"):
        client.health()


def test_addresses(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    monkeypatch.setenv("HTTP_PROXY", free_url())
    server.result([[]])
    for url in (server.url, server.url + "/", server.url + "/retrieve", f" {server.url}/retrieve/ "):
        with HttpRetriever(url, tries=1) as client:
            assert client.retrieve(["q"], 1) == [[]]
    for url in (
        "",
        "127.0.0.1:8013",
        "localhost:8013",
        "ftp://x",
        "http://",
        "http://x:99999",
        "http://x:a",
        "http://[",
    ):
        with pytest.raises(UserError, match=r"write it as http://127\.0\.0\.1:8013"):
            HttpRetriever(url)
    numbers: list[dict[str, Any]] = [{"tries": 0}, {"timeout_s": 0}, {"backoff_s": -1}, {"max_concurrent": 0}]
    for wrong in numbers:
        with pytest.raises(UserError, match="tries="):
            HttpRetriever("http://x", **wrong)
    with pytest.raises(ValueError, match="top_k"):
        HttpRetriever("http://x").retrieve(["q"], 0)
