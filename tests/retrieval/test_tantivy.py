"""The tantivy index: the words of bm25.py, no query language, the same refusals."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from mempo.errors import UserError
from mempo.retrieval.corpus import Corpus
from mempo.retrieval.document import Document, Retriever
from mempo.retrieval.errors import CorpusError, IndexFolderError
from mempo.retrieval.index import open_index
from mempo.retrieval.tantivy import TantivyIndex

DOCUMENTS = [
    Document("fr", "France", "France is a country whose capital is Paris.", "http://w/france"),
    Document("pa", "Paris", "Paris lies on the Seine and has 20 districts."),
    Document("zh", "中国", "中国的首都是北京。"),
    Document("e1", "Twin", "same words here"),
    Document("e2", "Twin", "same words here"),
    Document("no", "", "...!"),
]


@pytest.fixture
def index(tmp_path: Path) -> TantivyIndex:
    return TantivyIndex.build(Corpus.from_documents(DOCUMENTS, tmp_path / "corpus"), tmp_path / "index")


def found(index: Retriever, query: str, top_k: int = 5) -> list[str]:
    return [hit.document.id for hit in index.retrieve([query], top_k)[0]]


def test_finds(index: TantivyIndex, tmp_path: Path) -> None:
    for query, best in [
        ("capital of France", "fr"),
        ("PARIS", "pa"),
        ("ＰＡＲＩＳ", "pa"),
        ("20", "pa"),
        ("北京", "zh"),
    ]:
        assert found(index, query, 1) == [best]
    assert found(index, "same") == ["e1", "e2"], "ties by place in the corpus"
    assert index.access(["http://w/france", ""]) == [DOCUMENTS[0], None]
    assert open_index(tmp_path / "index").retrieve(["capital", "paris"], 3) == index.retrieve(["capital", "paris"], 3)


@pytest.mark.parametrize("query", ["", "?!", "\x00", "\ud800", "zzzz", "title:", "*"])
def test_nothing_to_find(index: TantivyIndex, query: str) -> None:
    assert index.retrieve([query], 3) == [[]]


@pytest.mark.parametrize(
    "query", ["-paris", 'NOT "paris"', "zzzz AND paris", "place:0 paris", "Paris " * 5000, "p* paris^9"]
)
def test_no_query_is_a_program(index: TantivyIndex, query: str) -> None:
    assert found(index, query)[0] == "pa"


def test_titles_weigh(tmp_path: Path) -> None:
    documents = [Document("text", "x", "rome"), Document("title", "rome", "x")]
    corpus = Corpus.from_documents(documents, tmp_path / "c")
    for weight, order in [(3.0, ["title", "text"]), (0.0, ["text"])]:
        index = TantivyIndex.build(corpus, tmp_path / "i", weight)
        assert found(index, "rome") == order


def test_refusals(tmp_path: Path, index: TantivyIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CorpusError, match="none of its 1 documents has a word"):
        TantivyIndex.build(Corpus.from_documents([Document("a", "", "!?")], tmp_path / "c"), tmp_path / "i")
    path = tmp_path / "index" / "index.json"
    side = json.loads(path.read_text())
    path.write_text(json.dumps({**side, "documents": 5}))
    with pytest.raises(IndexFolderError, match=r"holds 5 documents, its corpus .* 6"):
        open_index(tmp_path / "index")
    path.write_text(json.dumps({**side, "parameters": {**side["parameters"], "tokeniser": "old"}}))
    with pytest.raises(IndexFolderError, match="tokeniser 'old'"):
        open_index(tmp_path / "index")
    path.write_text(json.dumps(side))
    (tmp_path / "index" / "tantivy" / "meta.json").unlink()
    with pytest.raises(IndexFolderError, match="incomplete or damaged"):
        open_index(tmp_path / "index")
    monkeypatch.setitem(sys.modules, "tantivy", None)
    with pytest.raises(UserError, match=r"pip install 'mempo\[tantivy\]'; or take kind 'bm25'"):
        open_index(tmp_path / "index")
