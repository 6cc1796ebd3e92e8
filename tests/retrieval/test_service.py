"""The HTTP service: its replies byte for byte, its refusals, and hostile requests."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from pydantic import ValidationError

from mempo.config.retrieval import ServiceSettings
from mempo.retrieval.client import HttpRetriever
from mempo.retrieval.corpus import Corpus, Document
from mempo.retrieval.document import Hit
from mempo.retrieval.errors import CorpusError
from mempo.retrieval.index import Bm25Index
from mempo.retrieval.server.app import create_app
from tests.retrieval.serving import serving

DOCUMENTS = [Document(str(i), f"City {i}", f"a city called number{i}", f"http://w/{i}") for i in range(6)]


@pytest.fixture
def index(tmp_path: Path) -> Bm25Index:
    return Bm25Index.build(Corpus.from_documents(DOCUMENTS, tmp_path / "c"), tmp_path / "i")


@pytest.fixture
def web(index: Bm25Index) -> Iterator[TestClient]:
    with TestClient(create_app(index)) as web:
        yield web


class Library:
    """Finds a document that says what was asked, and remembers every call."""

    def __init__(self, failing: str | None = None) -> None:
        self.calls: list[tuple[list[str], int]] = []
        self._failing = failing

    def retrieve(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
        self.calls.append((list(queries), top_k))
        if self._failing in queries:
            raise CorpusError("corpus c.jsonl changed while in use: document 7: not JSON")
        return [[Hit(Document(query, "", f"{query} of {top_k}"), 1.5)] * top_k for query in queries]

    def access(self, urls: Sequence[str]) -> list[Document | None]:
        if self._failing in urls:
            raise RuntimeError("disk \ud800 gone")
        return [None for _ in urls]


# --- the convention ------------------------------------------------------------------------------------------------


def test_with_scores(web: TestClient) -> None:
    reply = web.post("/retrieve", json={"queries": ["number4", "zz"], "topk": 2, "return_scores": True}).json()
    [[item], nothing] = reply["result"]
    assert nothing == []
    assert item["document"] == {"id": "4", "contents": '"City 4"\na city called number4', "url": "http://w/4"}
    assert item["score"] > 0


def test_without_scores_items_are_rows(web: TestClient) -> None:
    reply = web.post("/retrieve", json={"queries": ["number4"], "topk": 2, "return_scores": False}).json()
    assert reply == {"result": [[{"id": "4", "contents": '"City 4"\na city called number4', "url": "http://w/4"}]]}
    assert web.post("/retrieve", json={"queries": ["number4"]}).json() == reply


def test_rows_have_their_titles_where_the_corpus_has_them(index: Bm25Index) -> None:
    web = TestClient(create_app(index, titles=True))
    [[row]] = web.post("/retrieve", json={"queries": ["number4"]}).json()["result"]
    assert row["title"] == "City 4"
    assert row["contents"].startswith('"City 4"\n')


def test_default_top_k(index: Bm25Index) -> None:
    for default, body, expected in [(3, {}, 3), (3, {"topk": None}, 3), (5, {"topk": None}, 5), (5, {"topk": 1}, 1)]:
        web = TestClient(create_app(index, ServiceSettings(default_top_k=default)))
        assert len(web.post("/retrieve", json={"queries": ["city"], **body}).json()["result"][0]) == expected


def test_one_query_asked_with_two_top_ks_has_two_answers() -> None:
    web = TestClient(create_app(Library()))
    for top_k in (1, 3, 1):
        [rows] = web.post("/retrieve", json={"queries": ["q"], "topk": top_k}).json()["result"]
        assert [row["contents"] for row in rows] == [f'""\nq of {top_k}'] * top_k


def test_a_query_twice_in_one_request_is_answered_twice() -> None:
    library = Library()
    reply = TestClient(create_app(library)).post("/retrieve", json={"queries": ["a", "b", "a"], "topk": 1}).json()
    assert [[row["id"] for row in rows] for rows in reply["result"]] == [["a"], ["b"], ["a"]]
    assert library.calls == [(["a", "b"], 1)]


def test_a_score_that_is_no_number_is_null() -> None:
    class Infinite(Library):
        def retrieve(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
            return [[Hit(DOCUMENTS[0], score) for score in (float("inf"), float("nan"), 1e-30)] for _ in queries]

    with serving(create_app(Infinite())) as url:
        reply = httpx.post(f"{url}/retrieve", json={"queries": ["q"], "return_scores": True}).json()
        assert [item["score"] for item in reply["result"][0]] == [None, None, 1e-30]
        with HttpRetriever(url, tries=1) as client:
            assert [hit.score for hit in client.retrieve(["q"], 3)[0]] == [0.0, 0.0, 1e-30]


def test_access(web: TestClient) -> None:
    reply = web.post("/access", json={"urls": ["http://w/2", "nowhere"]}).json()
    assert reply == {"result": [{"url": "http://w/2", "contents": '"City 2"\na city called number2'}, None]}


def test_access_knows_both_forms_of_a_wiki_address(tmp_path: Path) -> None:
    page = Document("1", "Paris", "a city", "https://w/index.php?title=Paris")
    index = Bm25Index.build(Corpus.from_documents([page], tmp_path / "c"), tmp_path / "i")
    asked = "https://w/index.php/Paris"
    reply = TestClient(create_app(index)).post("/access", json={"urls": ["x", asked, "https://w/index.php/Rome"]})
    assert reply.json()["result"] == [None, {"url": asked, "contents": '"Paris"\na city'}, None]


def test_other_methods_and_the_description(web: TestClient) -> None:
    assert web.get("/retrieve").status_code == 405
    assert web.post("/nowhere").status_code == 404
    assert {"/retrieve", "/access", "/health"} <= set(web.get("/openapi.json").json()["paths"])


def test_health(web: TestClient) -> None:
    assert web.get("/health").json() == {"status": "ok"}


def test_info_says_what_is_served(index: Bm25Index) -> None:
    web = TestClient(create_app(index, ServiceSettings(max_queries=7), about={"kind": "bm25", "documents": 6}))
    facts = web.get("/info").json()
    assert (facts["kind"], facts["documents"], facts["settings"]["max_queries"]) == ("bm25", 6, 7)


def test_metrics_count_requests_queries_and_the_cache(index: Bm25Index) -> None:
    web = TestClient(create_app(index))
    for _ in range(3):
        web.post("/retrieve", json={"queries": ["number1", "number2"]})
    web.post("/retrieve", content=b"{")
    reply = web.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    values = dict(line.rsplit(" ", 1) for line in reply.text.splitlines() if not line.startswith("#"))
    assert values['mempo_retrieval_requests_total{path="/retrieve",status="200"}'] == "3.0"
    assert values['mempo_retrieval_requests_total{path="/retrieve",status="422"}'] == "1.0"
    assert values["mempo_retrieval_queries_total"] == "6.0"
    assert values["mempo_retrieval_cached_queries_total"] == "4.0"
    assert values["mempo_retrieval_batch_queries_count"] == "1.0"
    assert values["mempo_retrieval_waiting_queries"] == "0.0"


def test_the_cache_answers_what_was_asked_before_and_can_be_off() -> None:
    for cache_mib, calls in ((64.0, 1), (0.0, 2)):
        library = Library()
        web = TestClient(create_app(library, ServiceSettings(cache_mib=cache_mib)))
        replies = [web.post("/retrieve", json={"queries": ["q"], "return_scores": s}).json() for s in (False, True)]
        assert [item["document"] for item in replies[1]["result"][0]] == replies[0]["result"][0]
        assert len(library.calls) == calls


# --- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "content", "said"),
    [
        ("/retrieve", b"", "not JSON"),
        ("/retrieve", b"\xff", "not JSON"),
        ("/retrieve", b"[" * 100_000, "not JSON"),
        ("/retrieve", b"[]", "must be a JSON object, not a list"),
        ("/retrieve", b"{}", '"queries" must be a list of strings'),
        ("/retrieve", b'{"queries": "one"}', '"queries" must be a list of strings'),
        ("/retrieve", b'{"queries": ["a", null]}', '"queries" must be a list of strings'),
        ("/retrieve", b'{"queries": ["a"], "topk": 0}', '"topk" must be an integer of at least 1'),
        ("/retrieve", b'{"queries": ["a"], "topk": true}', '"topk" must be an integer of at least 1'),
        ("/retrieve", b'{"queries": ["a"], "topk": 2.5}', '"topk" must be an integer of at least 1'),
        ("/retrieve", b'{"queries": ["a"], "return_scores": "yes"}', '"return_scores" must be a boolean, not a string'),
        ("/access", b'{"urls": null}', '"urls" must be a list of strings'),
    ],
)
def test_bad_requests(web: TestClient, path: str, content: bytes, said: str) -> None:
    reply = web.post(path, content=content)
    assert reply.status_code == 422
    assert reply.json()["error"]["kind"] == "request"
    assert said in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body", "status", "limit", "given", "allowed"),
    [
        ("/retrieve", {"queries": ["a"] * 6}, 422, "max_queries", 6, 5),
        ("/access", {"urls": ["a"] * 6}, 422, "max_queries", 6, 5),
        ("/retrieve", {"queries": ["a", "x" * 21]}, 422, "max_query_chars", 21, 20),
        ("/access", {"urls": ["x" * 50_000]}, 413, "max_body_bytes", None, 500),
        ("/retrieve", {"queries": ["a"], "topk": 11}, 422, "max_top_k", 11, 10),
        ("/retrieve", {"queries": ["a"], "padding": "x" * 500}, 413, "max_body_bytes", None, 500),
        ("/retrieve", {"queries": ["a"] * 5, "topk": 9}, 422, "max_passages", 45, 40),
    ],
)
def test_limits_are_typed(
    index: Bm25Index, path: str, body: dict[str, Any], status: int, limit: str, given: int | None, allowed: int
) -> None:
    limits = ServiceSettings(max_queries=5, max_query_chars=20, max_top_k=10, max_passages=40, max_body_bytes=500)
    web = TestClient(create_app(index, limits))
    reply = web.post(path, json=body)
    error = reply.json()["error"]
    assert reply.status_code == status
    assert (error["kind"], error["limit"], error["allowed"]) == ("limit", limit, allowed)
    assert error["given"] == (given if given is not None else len(reply.request.content))
    assert str(allowed) in error["message"]
    for at_the_limit in ({"queries": ["a" * 20] * 5, "topk": 8}, {"queries": ["a" * 20] * 4, "topk": 10}):
        assert web.post("/retrieve", json=at_the_limit).status_code == 200


def test_a_body_without_an_announced_length_is_counted(index: Bm25Index) -> None:
    web = TestClient(create_app(index, ServiceSettings(max_body_bytes=500)))
    reply = web.post("/retrieve", content=(b" " * 100 for _ in range(6)))
    assert (reply.status_code, reply.json()["error"]["given"]) == (413, None)


def test_a_body_that_does_not_end_is_given_up(index: Bm25Index) -> None:
    import socket

    with serving(create_app(index, ServiceSettings(body_timeout_s=0.05))) as url:
        with socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), timeout=5) as connection:
            connection.sendall(b"POST /retrieve HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
            assert b" 408 " in connection.recv(1000)
        assert httpx.get(f"{url}/health").status_code == 200


@pytest.mark.parametrize("changes", [{"max_queries": 0}, {"max_waiting_queries": 10}, {"default_top_k": 2000}])
def test_limits_that_cannot_work_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ServiceSettings(**changes)


def test_a_token_is_asked_for_by_all_but_health(index: Bm25Index) -> None:
    with serving(create_app(index, token="s3cret")) as url:
        assert httpx.get(f"{url}/health").status_code == 200
        for method, path in (("POST", "/retrieve"), ("POST", "/access"), ("GET", "/info"), ("GET", "/metrics")):
            for headers in ({}, {"authorization": "Bearer other"}, {"authorization": "s3cret"}):
                reply = httpx.request(method, url + path, headers=headers)
                assert (reply.status_code, reply.json()["error"]["kind"]) == (401, "token")
                assert "s3cret" not in reply.text
                assert reply.headers["www-authenticate"] == "Bearer"
        for path in ("/docs", "/redoc", "/openapi.json", "/docs/oauth2-redirect"):
            assert httpx.get(url + path).status_code == 404
        for scheme in ("Bearer", "bearer", "BEARER", "bEaReR", "Bearer  "):
            assert httpx.get(f"{url}/info", headers={"authorization": f"{scheme} s3cret"}).status_code == 200
        for wrong in ("Basic s3cret", "Bearers3cret", "Bearer", "Bearer s3cret x", "Bearer \xe9"):
            reply = httpx.get(f"{url}/info", headers={b"authorization": wrong.encode("latin-1")})
            assert reply.status_code == 401
        with HttpRetriever(url, tries=1, token="s3cret") as client:
            client.health()
            assert client.access(["http://w/1"])[0] is not None


def test_a_full_queue_is_refused_with_a_time_to_come_back() -> None:
    began, go_on = threading.Event(), threading.Event()

    class Slow(Library):
        def retrieve(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
            began.set()
            assert go_on.wait(10)
            return super().retrieve(queries, top_k)

    replies: list[httpx.Response] = []
    with serving(create_app(Slow(), ServiceSettings(max_queries=2, max_waiting_queries=2))) as url:

        def ask(query: str) -> None:
            replies.append(httpx.post(f"{url}/retrieve", json={"queries": [query, query + "2"]}, timeout=10))

        first = threading.Thread(target=ask, args=("a",))
        first.start()
        assert began.wait(10)
        refused = httpx.post(f"{url}/retrieve", json={"queries": ["b"]}, timeout=10)
        assert (refused.status_code, refused.json()["error"]["kind"]) == (503, "busy")
        assert int(refused.headers["retry-after"]) >= 1
        assert httpx.get(f"{url}/health", timeout=10).status_code == 200
        go_on.set()
        first.join()
        assert httpx.post(f"{url}/retrieve", json={"queries": ["b"]}, timeout=10).status_code == 200
    assert [reply.status_code for reply in replies] == [200]


# --- faults --------------------------------------------------------------------------------------------------------


def test_hostile_queries(web: TestClient) -> None:
    queries = ["", "\x00", "\ud800", "x" * 50_000, "number1\ud800"]
    reply = web.post("/retrieve", content=json.dumps({"queries": queries, "topk": 1}).encode())
    assert [[row["id"] for row in rows] for rows in reply.json()["result"]] == [[], [], [], [], ["1"]]
    assert web.post("/retrieve", json={"queries": []}).json() == {"result": []}
    assert web.post("/access", content=b'{"urls": ["\\ud800"]}').json() == {"result": [None]}


def test_a_failing_retriever_is_a_reply_and_is_not_remembered() -> None:
    library = Library(failing="bad")
    web = TestClient(create_app(library))
    for _ in range(2):
        reply = web.post("/retrieve", json={"queries": ["bad"]})
        assert (reply.status_code, reply.json()["error"]["kind"]) == (500, "retriever")
        assert "CorpusError: corpus c.jsonl changed while in use" in reply.json()["error"]["message"]
    assert web.post("/access", json={"urls": ["bad"]}).status_code == 500
    assert web.post("/retrieve", json={"queries": ["good"]}).status_code == 200


def test_a_broken_line_of_the_corpus_spoils_the_queries_that_find_it(tmp_path: Path) -> None:
    corpus = Corpus.from_documents(DOCUMENTS, tmp_path / "c")
    index = Bm25Index.build(corpus, tmp_path / "i")
    text = corpus.text_path.read_bytes()
    corpus.text_path.write_bytes(text.replace(b'"a city called number3"', b'"a city called number3 '))
    web = TestClient(create_app(index))
    reply = web.post("/retrieve", json={"queries": ["number3"]})
    assert reply.status_code == 500
    assert "changed while in use: document 3" in reply.json()["error"]["message"]
    assert web.post("/retrieve", json={"queries": ["number2"]}).json()["result"][0][0]["id"] == "2"


def test_text_that_utf8_cannot_hold_is_repaired() -> None:
    class Odd(Library):
        def retrieve(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
            return [[Hit(Document("1", "t", "half \ud83d"), 1.0)] for _ in queries]

    [[row]] = TestClient(create_app(Odd())).post("/retrieve", json={"queries": ["q"]}).json()["result"]
    assert row["contents"] == '"t"\nhalf \ufffd'


def test_client_and_service_together(index: Bm25Index) -> None:
    with serving(create_app(index)) as url, HttpRetriever(url) as client:
        client.health()
        queries = ["number3", "city", "", "\ud800"]
        assert client.retrieve(queries, 4) == index.retrieve(queries, 4)
        assert client.access(["http://w/5", "x"])[1] is None
        page = client.access(["http://w/5"])[0]
        assert page is not None
        assert (page.title, page.text, page.url) == ("City 5", DOCUMENTS[5].text, "http://w/5")
