"""The retriever behind HTTP: what it asks, what it makes of replies, and which are none. Deadlines, connections and
secrets are those of every client (tests/http)."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from mempo.errors import UserError
from mempo.http.errors import HttpError
from mempo.retrieval.client import HttpRetriever
from mempo.retrieval.document import Document, Hit, Retriever
from tests.tools.fake_web import FakeWeb, Reply, Request, fake_web

ROW = {"id": "7", "contents": '"Paris"\nthe capital'}
PARIS = Document("7", "Paris", "the capital")
HANGS_UP = Reply(body=b"{", length=100)


@pytest.fixture
def server() -> Iterator[FakeWeb]:
    with fake_web() as server:
        yield server


@pytest.fixture
def client(server: FakeWeb) -> Iterator[HttpRetriever]:
    with HttpRetriever(server.url("", "127.0.0.1"), timeout_s=5, tries=3, backoff_s=0.001) as client:
        yield client


def result(result: object) -> Reply:
    return Reply(body=json.dumps({"result": result}).encode())


def asked(server: FakeWeb) -> list[tuple[str, dict[str, Any]]]:
    return [(request.path, json.loads(request.body)) for request in server.requests]


def test_asks_as_the_convention_says(server: FakeWeb, client: HttpRetriever) -> None:
    server.pages["/retrieve"] = result([[{"document": ROW, "score": 2}], []])
    assert client.retrieve(["capital", "zz"], 3) == [[Hit(PARIS, 2.0)], []]
    assert asked(server) == [("/retrieve", {"queries": ["capital", "zz"], "topk": 3, "return_scores": True})]
    assert isinstance(client, Retriever)
    assert client.retrieve([], 3) == []
    assert client.access([]) == []
    assert len(server.requests) == 1, "nothing to ask, nothing sent"
    with pytest.raises(ValueError, match="top_k"):
        client.retrieve(["q"], 0)


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
def test_items_with_and_without_scores(server: FakeWeb, client: HttpRetriever, item: object, hit: Hit) -> None:
    server.pages["/retrieve"] = result([[item, item, item]])
    assert client.retrieve(["q"], 2) == [[hit, hit]], "a server that sends more than asked is cut"


def test_rows_without_id_get_the_same_one_each_time(server: FakeWeb, client: HttpRetriever) -> None:
    server.pages["/retrieve"] = result([[{"text": "a"}, {"text": "b"}, {"text": "a"}]])
    first, second, third = (hit.document.id for hit in client.retrieve(["q"], 3)[0])
    assert first == third != second


def test_access(server: FakeWeb, client: HttpRetriever) -> None:
    server.pages["/access"] = result([{"url": "http://a", "contents": "no title\nbody"}, None, {"contents": '"T"\nx'}])
    pages = client.access(["http://a", "http://b", "http://c"])
    assert [(p.title, p.text, p.url) if p else None for p in pages] == [
        ("", "no title\nbody", "http://a"),
        None,
        ("T", "x", "http://c"),
    ]


def test_hostile_queries_reach_the_server(server: FakeWeb, client: HttpRetriever) -> None:
    server.pages["/retrieve"] = result([[], [], []])
    client.retrieve(["a\x00b", "\ud800", "x" * 50_000], 1)
    assert asked(server)[0][1]["queries"] == ["a\x00b", "\ufffd", "x" * 50_000]


def test_the_token_is_sent(server: FakeWeb) -> None:
    server.pages["/retrieve"] = result([[]])
    with HttpRetriever(server.url("", "127.0.0.1"), token="s3cret") as client:
        client.health()
    assert server.requests[0].headers["authorization"] == "Bearer s3cret"


# --- failures ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [*(Reply(status, b"busy") for status in (429, 500, 502, 503, 504)), HANGS_UP])
def test_twice_bad_then_good(server: FakeWeb, client: HttpRetriever, bad: Reply) -> None:
    server.pages["/retrieve"] = lambda request: bad if len(server.requests) < 3 else result([[ROW]])
    assert client.retrieve(["q"], 1) == [[Hit(PARIS, 0.0)]]
    assert len(server.requests) == 3


@pytest.mark.parametrize("bad", [Reply(500, b"<html>busy</html>"), HANGS_UP])
def test_a_server_that_fails_at_random_is_asked_until_it_answers(server: FakeWeb, bad: Reply) -> None:
    rng = random.Random(bad.status)

    def answer(request: Request) -> Reply:
        return bad if rng.random() < 0.3 else result([[{"id": json.loads(request.body)["queries"][0], "text": "t"}]])

    server.pages["/retrieve"] = answer
    url = server.url("", "127.0.0.1")
    with HttpRetriever(url, tries=10, backoff_s=0) as client, ThreadPoolExecutor(8) as threads:
        found = threads.map(lambda n: client.retrieve([str(n)], 1)[0][0].document.id, range(100))
        assert list(found) == [str(n) for n in range(100)]


def test_html_500(server: FakeWeb, client: HttpRetriever) -> None:
    server.pages["/retrieve"] = Reply(500, b"<html>\xff\n\x1b[31m" + b"x" * 1000)
    with pytest.raises(HttpError) as caught:
        client.retrieve(["q"], 1)
    error, url = caught.value, server.url("/retrieve", "127.0.0.1")
    assert (error.kind, error.status, error.url) == ("status", 500, url)
    assert error.body_head.startswith("<html>\\xff\\n\\x1b[31mxxx")
    assert error.body_head.count("x") < 205
    assert f"{url}: HTTP 500 (try 3) [status; status 500, first bytes: <html>" in str(error)
    assert str(error).isprintable()
    assert len(server.requests) == 3
    assert isinstance(error, UserError)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.kind, copy.status) == (str(error), error.kind, error.status)


@pytest.mark.parametrize("status", [301, 400, 404, 422])
def test_other_statuses_are_not_tried_again(server: FakeWeb, client: HttpRetriever, status: int) -> None:
    server.pages["/retrieve"] = Reply(status, b"no")
    with pytest.raises(HttpError, match=rf"HTTP {status} \[status") as caught:
        client.health()
    assert (caught.value.kind, caught.value.status, len(server.requests)) == ("status", status, 1)


@pytest.mark.parametrize(
    "body", [b"", b"<html>200 but no JSON</html>", b'{"result": [[', b"\xff\xfe\x00", b"[" * 100_000]
)
def test_not_json(server: FakeWeb, client: HttpRetriever, body: bytes) -> None:
    server.pages["/retrieve"] = Reply(body=body)
    with pytest.raises(HttpError, match=r"not JSON \(try 3\)") as caught:
        client.retrieve(["q"], 1)
    assert (caught.value.kind, caught.value.status, len(server.requests)) == ("not_json", 200, 3)
    assert ("(empty body)" in str(caught.value)) == (body == b"")


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/retrieve", {"result": []}, '"result" holds 0 entries for 1 queries'),
        ("/retrieve", {"result": [[], []]}, '"result" holds 2 entries for 1 queries'),
        ("/retrieve", {"result": None}, 'no list "result"'),
        ("/retrieve", [], 'no list "result"'),
        ("/retrieve", {"result": [None]}, "result 0 is null, not a list"),
        ("/retrieve", {"result": [[{"document": None, "score": -3.4e38}]]}, 'item 0: a document needs "contents"'),
        ("/retrieve", {"result": [["text"]]}, "result 0, item 0 is a string, not a document"),
        (
            "/retrieve",
            {"result": [[ROW, {"document": {"id": "1"}, "score": 1}]]},
            "item 1: a document needs",
        ),
        ("/retrieve", {"result": [[{"document": ROW, "score": "high"}]]}, "the score is a string"),
        ("/retrieve", {"result": [[{"document": ROW, "score": 10**400}]]}, "too large"),
        ("/retrieve", {"result": [[{"contents": 5}]]}, '"contents" must be a string'),
        ("/access", {"result": []}, '"result" holds 0 entries for 1 urls'),
        ("/access", {"result": ["text"]}, "result 0 is a string, not a document"),
        ("/access", {"result": [{"url": "u"}]}, 'result 0: a document needs "contents"'),
    ],
)
def test_wrong_schema(server: FakeWeb, client: HttpRetriever, path: str, body: object, said: str) -> None:
    server.pages[path] = Reply(body=json.dumps(body).encode())
    with pytest.raises(HttpError, match=f"{path}: .*schema; status 200") as caught:
        client.retrieve(["q"], 3) if path == "/retrieve" else client.access(["u"])
    assert caught.value.kind == "schema"
    assert said in str(caught.value)
    assert len(server.requests) == 1


def test_addresses(monkeypatch: pytest.MonkeyPatch, server: FakeWeb) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    server.pages["/retrieve"] = result([[]])
    url = server.url("", "127.0.0.1")
    for written in (url, url + "/", url + "/retrieve", f" {url}/retrieve/ "):
        with HttpRetriever(written, tries=1) as client:
            assert client.retrieve(["q"], 1) == [[]]


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:8013", "localhost:8013", "ftp://x", "http://", "http://x:99999", "http://x:a", "http://["]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(UserError, match=r"write it as http://127\.0\.0\.1:8013"):
        HttpRetriever(url)


@pytest.mark.parametrize("wrong", [{"tries": 0}, {"timeout_s": 0}, {"backoff_s": -1}, {"max_concurrent": 0}])
def test_numbers_that_cannot_be_used_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="tries="):
        HttpRetriever("http://x", **wrong)


def test_at_least_one_passage_is_asked_for() -> None:
    with pytest.raises(ValueError, match="top_k"):
        HttpRetriever("http://x").retrieve(["q"], 0)
