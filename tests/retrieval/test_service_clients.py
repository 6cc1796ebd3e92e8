"""Clients of other projects, as far as their requests and what they read of the replies, against the real service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from mempo.config.retrieval import ServiceSettings
from mempo.retrieval.corpus import Corpus
from mempo.retrieval.index import Bm25Index
from mempo.retrieval.server.app import create_app
from tests.retrieval.serving import serving

ROWS = [
    {
        "id": "0",
        "contents": '"Paris"\nParis is the capital of France.\nIt lies on the Seine.',
        "url": "https://w/Paris",
    },
    {"id": "1", "contents": '"Lima"\nLima is the capital of Peru.', "url": "https://w/Lima"},
    {"id": "2", "contents": '"Seine"\nA river of France.', "url": "https://w/Seine"},
]


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    import json

    (tmp_path / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    index = Bm25Index.build(Corpus.open(tmp_path / "c.jsonl"), tmp_path / "i")
    with serving(create_app(index, ServiceSettings(max_queries=1000))) as url:
        yield url


def passages_as_a_string(result: list[dict[str, Any]]) -> str:
    """How Search-R1 and verl show a result: the first line of the contents is the title, quotes and all."""
    shown = []
    for number, item in enumerate(result, start=1):
        title, *text = item["document"]["contents"].split("\n")
        shown.append(f"Doc {number} (Title: {title})\n" + "\n".join(text))
    return "\n\n".join(shown)


def verl_search(service: str, queries: list[str], topk: int = 3, tries: int = 10) -> dict[str, Any] | str:
    """verl's search tool: JSON both ways, tries again on four statuses, and takes any other for its result."""
    status = 0
    for _ in range(tries):
        reply = httpx.post(
            service,
            json={"queries": queries, "topk": topk, "return_scores": True},
            headers={"Content-Type": "application/json", "Accept": "application/json"},
            timeout=30,
        )
        status = reply.status_code
        if status in (500, 502, 503, 504):
            continue
        reply.raise_for_status()
        body = reply.json()
        results = body.get("result", [])
        if not results:
            return "no_results"
        return {
            "text": "\n---\n".join(passages_as_a_string(result) for result in results),
            "total": sum(len(result) for result in results),
        }
    return f"error {status}"


def test_verls_search_tool(url: str) -> None:
    found = verl_search(f"{url}/retrieve", ["capital of France", "Lima Peru"], topk=1)
    assert found == {
        "text": 'Doc 1 (Title: "Paris")\nParis is the capital of France.\nIt lies on the Seine.\n---\n'
        'Doc 1 (Title: "Lima")\nLima is the capital of Peru.',
        "total": 2,
    }
    assert verl_search(f"{url}/retrieve", ["zzz"]) == {"text": "", "total": 0}


def test_search_r1_sends_a_whole_batch_and_reads_one_list_per_query(url: str) -> None:
    queries = [("capital of France", "capital of Peru", "river", "", "x" * 5000)[n % 5] for n in range(640)]
    reply = httpx.post(f"{url}/retrieve", json={"queries": queries, "topk": 2, "return_scores": True}).json()
    results = reply["result"]
    assert len(results) == 640
    shown = [passages_as_a_string(result) for result in results]
    for place, title in ((0, "Paris"), (1, "Lima"), (2, "Seine")):
        assert all(text.startswith(f'Doc 1 (Title: "{title}")\n') for text in shown[place::5])
    assert set(shown[3::5]) == set(shown[4::5]) == {""}
    for result in results:
        scores = [item["score"] for item in result]
        assert scores == sorted(scores, reverse=True)


def test_search_r1s_example_leaves_the_rest_to_the_server(url: str) -> None:
    reply = httpx.post(f"{url}/retrieve", json={"queries": ["capital of France"]}).json()
    rows = reply["result"][0]
    assert rows[0] == ROWS[0], "without scores an item is the corpus row"
    assert len(rows) == 3, "the server's own top k"
    null = {"queries": ["capital of France"], "topk": None, "return_scores": False}
    assert httpx.post(f"{url}/retrieve", json=null).json() == reply


def test_asearchers_client_reads_contents_and_urls_and_opens_pages(url: str) -> None:
    asked = {"queries": ["capital"], "topk": 5, "return_scores": False}
    reply = httpx.post(f"{url}/retrieve", json=asked)
    assert reply.headers["content-type"] == "application/json"
    [result] = reply.json()["result"]
    found = [{"documents": [row["contents"] for row in result], "urls": [row["url"] for row in result]}]
    assert set(found[0]["urls"]) == {"https://w/Paris", "https://w/Lima"}
    pages = httpx.post(f"{url}/access", json={"urls": ["https://w/Lima", "https://w/nowhere"]}).json()["result"]
    assert [page["contents"] if page is not None else "" for page in pages] == [ROWS[1]["contents"], ""]
