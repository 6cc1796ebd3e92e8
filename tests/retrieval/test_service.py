"""The HTTP service: its replies as other projects' clients read them, and hostile requests."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi.testclient import TestClient

from mempo.retrieval.client import HttpRetriever
from mempo.retrieval.corpus import Corpus, Document
from mempo.retrieval.index import Bm25Index
from mempo.retrieval.service import create_app
from mempo.retrieval.types import Hit

DOCUMENTS = [Document(str(i), f"City {i}", f"a city called number{i}", f"http://w/{i}") for i in range(6)]


@pytest.fixture
def index(tmp_path: Path) -> Bm25Index:
    return Bm25Index.build(Corpus.from_documents(DOCUMENTS, tmp_path / "c"), tmp_path / "i")


@pytest.fixture
def web(index: Bm25Index) -> Iterator[TestClient]:
    with TestClient(create_app(index)) as web:
        yield web


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


def test_default_top_k(index: Bm25Index) -> None:
    for default, body, expected in [(3, {}, 3), (3, {"topk": None}, 3), (5, {"topk": None}, 5), (5, {"topk": 1}, 1)]:
        web = TestClient(create_app(index, default_top_k=default))
        assert len(web.post("/retrieve", json={"queries": ["city"], **body}).json()["result"][0]) == expected
    with pytest.raises(ValueError, match="default_top_k"):
        create_app(index, 0)


def test_access(web: TestClient) -> None:
    reply = web.post("/access", json={"urls": ["http://w/2", "nowhere"]}).json()
    assert reply == {"result": [{"url": "http://w/2", "contents": '"City 2"\na city called number2'}, None]}


def test_health(web: TestClient) -> None:
    assert web.get("/health").json() == {"status": "ok"}


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


def test_hostile_queries(web: TestClient) -> None:
    queries = ["", "\x00", "\ud800", "x" * 50_000, "number1\ud800"]
    reply = web.post("/retrieve", content=json.dumps({"queries": queries, "topk": 1}).encode())
    assert [[row["id"] for row in rows] for rows in reply.json()["result"]] == [[], [], [], [], ["1"]]
    assert web.post("/retrieve", json={"queries": []}).json() == {"result": []}
    assert web.post("/access", content=b'{"urls": ["\\ud800"]}').json() == {"result": [None]}


def test_a_failing_retriever_is_a_reply() -> None:
    class Broken:
        def retrieve(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
            raise RuntimeError("disk \ud800 gone")

        def access(self, urls: Sequence[str]) -> list[Document | None]:
            return []

    web = TestClient(create_app(Broken()))
    reply = web.post("/retrieve", json={"queries": ["a"]})
    assert (reply.status_code, reply.json()["error"]["kind"]) == (500, "retriever")
    assert web.post("/access", json={"urls": ["a"]}).status_code == 500


def test_client_and_service_together(index: Bm25Index) -> None:
    config: Any = uvicorn.Config(create_app(index), host="127.0.0.1", port=0, log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        with HttpRetriever(f"http://127.0.0.1:{port}") as client:
            client.health()
            queries = ["number3", "city", "", "\ud800"]
            assert client.retrieve(queries, 4) == index.retrieve(queries, 4)
            assert client.access(["http://w/5", "x"])[1] is None
            page = client.access(["http://w/5"])[0]
            assert page is not None
            assert (page.title, page.text, page.url) == ("City 5", DOCUMENTS[5].text, "http://w/5")
    finally:
        server.should_exit = True
        thread.join()
