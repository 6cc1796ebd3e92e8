"""The lexical indexes: what they find, that they always answer, and that they refuse what they were not made for."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mempo.errors import UserError
from mempo.retrieval.corpus import Corpus, Document
from mempo.retrieval.document import Hit, Retriever
from mempo.retrieval.errors import CorpusError, IndexFolderError
from mempo.retrieval.index import Bm25Index, open_index
from mempo.retrieval.tantivy import TantivyIndex
from mempo.retrieval.words import words

Kind = type[Bm25Index] | type[TantivyIndex]
DOCUMENTS = [
    Document("fr", "France", "France is a country whose capital is Paris.", "http://w/france"),
    Document("pa", "Paris", "Paris lies on the Seine and has 20 districts.", "http://w/paris"),
    Document("zh", "中国", "中国的首都是北京。"),
    Document("hi", "हिन्दी", "हिन्दी भारत की भाषा है"),
    Document("e1", "Twin", "same words here"),
    Document("e2", "Twin", "same words here"),
    Document("no", "", "...!"),
]


@pytest.fixture
def index(tmp_path: Path) -> Bm25Index:
    return Bm25Index.build(Corpus.from_documents(DOCUMENTS, tmp_path / "corpus"), tmp_path / "index")


@pytest.fixture(params=[Bm25Index, TantivyIndex])
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param


@pytest.fixture
def lexical(kind: Kind, tmp_path: Path) -> Bm25Index | TantivyIndex:
    return kind.build(Corpus.from_documents(DOCUMENTS, tmp_path / "corpus"), tmp_path / "index")


def ids(lists: Sequence[Sequence[Hit]]) -> list[list[str]]:
    return [[hit.document.id for hit in hits] for hits in lists]


def test_finds(lexical: Bm25Index | TantivyIndex, tmp_path: Path) -> None:
    queries = ["capital of France", "PARIS", "ＰＡＲＩＳ", "20", "北京", "हिन्दी", "is the"]
    lists = lexical.retrieve(queries, 1)
    assert ids(lists) == [["fr"], ["pa"], ["pa"], ["pa"], ["zh"], ["hi"], ["fr"]]
    assert isinstance(lexical, Retriever)
    assert open_index(tmp_path / "index").retrieve(queries, 1) == lists


def test_titles_weigh(kind: Kind, tmp_path: Path) -> None:
    corpus = Corpus.from_documents([Document("text", "x", "rome"), Document("title", "rome", "x")], tmp_path / "c")
    for weight, order in [(3, ["title", "text"]), (0, ["text"])]:
        assert ids(kind.build(corpus, tmp_path / "i", weight).retrieve(["rome"], 5)) == [order]


def test_order_and_length(lexical: Bm25Index | TantivyIndex) -> None:
    assert ids(lexical.retrieve(["same"], 5)) == [["e1", "e2"]], "ties by place in the corpus; only real hits"
    assert ids(lexical.retrieve(["same"], 1)) == [["e1"]]
    scores = [hit.score for hit in lexical.retrieve(["paris seine capital"], 10)[0]]
    assert scores == sorted(scores, reverse=True)
    assert all(score > 0 for score in scores)
    assert lexical.retrieve(["here same"], 2) == lexical.retrieve(["same here"], 2)
    assert lexical.retrieve([], 3) == []
    with pytest.raises(ValueError, match="top_k"):
        lexical.retrieve(["x"], 0)


def test_many_ties_keep_the_corpus_order(tmp_path: Path) -> None:
    corpus = Corpus.from_documents((Document(str(i), "", "tie") for i in range(500)), tmp_path / "c")
    index = Bm25Index.build(corpus, tmp_path / "i")
    assert ids(index.retrieve(["tie"], 7)) == [[str(i) for i in range(7)]]


@pytest.mark.parametrize(
    "query", ["", " \t\n", "\x00", "?!...", "\ud800", "zzzz", "\u0301", "\U0010ffff", "_", "title:", "*"]
)
def test_queries_with_nothing_to_find(lexical: Bm25Index | TantivyIndex, query: str) -> None:
    assert lexical.retrieve([query], 3) == [[]]


ODD = ["pa\x00ris \x00Paris", "Paris\ud800", "Paris " * 10_000, "[Paris](x) AND NOT -1", "ﷺ" * 9_000 + " Paris"]
PROGRAMS = ["-paris", 'NOT "paris"', "zzzz AND paris", "place:0 paris", "p* paris^9"]


@pytest.mark.parametrize("query", ODD + PROGRAMS)
def test_odd_queries_still_find_and_no_query_is_a_program(lexical: Bm25Index | TantivyIndex, query: str) -> None:
    assert ids(lexical.retrieve([query], 1)) == [["pa"]]


def test_words() -> None:
    assert words("The São-Tomé & Príncipe, 1,200 m²!") == ["the", "são", "tomé", "príncipe", "1", "200", "m2"]
    assert words("Straße STRASSE") == ["strasse", "strasse"]
    assert words("e\u0301") == words("é")
    assert words("東京タワー・ソウル서울") == list("東京タワーソウル서울")
    assert words("हिन्दी ไทย") == ["हिन्दी", "ไทย"]
    assert words("İstanbul") == words("i\u0307stanbul")
    assert words("snake_case O'Brien") == ["snake", "case", "o", "brien"]


def test_access(lexical: Bm25Index | TantivyIndex) -> None:
    assert lexical.access(["http://w/paris", "http://w/none", ""]) == [DOCUMENTS[1], None, None]


def test_folder_speaks_for_itself(tmp_path: Path, index: Bm25Index) -> None:
    side = json.loads((tmp_path / "index" / "index.json").read_text())
    assert (side["kind"], side["documents"], side["corpus_sha256"]) == ("bm25", 7, index.corpus.sha256)
    assert side["parameters"]["title_weight"] == 2
    again = open_index(tmp_path / "index")
    assert again.retrieve(["capital paris"], 3) == index.retrieve(["capital paris"], 3)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_same_corpus_same_bytes_whatever_the_hash_seed(tmp_path: Path) -> None:
    Corpus.from_documents(DOCUMENTS, tmp_path / "c")
    program = (
        "import sys; from mempo.retrieval.corpus import Corpus; from mempo.retrieval.index import Bm25Index\n"
        "Bm25Index.build(Corpus.load(sys.argv[1]), sys.argv[2])"
    )
    for seed in ("1", "2"):
        command = [sys.executable, "-c", program, str(tmp_path / "c"), str(tmp_path / seed)]
        subprocess.run(command, check=True, env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)})
    one, two = ({p.relative_to(tmp_path / s): p for p in (tmp_path / s).rglob("*") if p.is_file()} for s in "12")
    assert one.keys() == two.keys()
    assert all(one[name].read_bytes() == two[name].read_bytes() for name in one)


def test_threads_agree(index: Bm25Index) -> None:
    queries = ["capital of France", "same words", "北京", ""] * 50
    expected = [index.retrieve([query], 2)[0] for query in queries]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda query: index.retrieve([query], 2)[0], queries)) == expected


def test_gzipped_corpus_makes_a_folder_that_stands_alone(tmp_path: Path) -> None:
    packed = tmp_path / "c.jsonl.gz"
    packed.write_bytes(gzip.compress(b'{"text": "alpha"}\n{"text": "beta"}\n'))
    Bm25Index.build(Corpus.open(packed), tmp_path / "index")
    packed.unlink()
    index = open_index(tmp_path / "index")
    assert ids(index.retrieve(["beta"], 1)) == [["1"]]
    assert isinstance(index, Bm25Index)
    rebuilt = Bm25Index.build(index.corpus, tmp_path / "index")
    assert ids(rebuilt.retrieve(["beta"], 1)) == [["1"]], "its own text is not lost when it is built again in place"
    assert ids(index.retrieve(["beta"], 1)) == [["1"]], "and the one in use goes on"


def test_another_corpus_is_refused_with_the_numbers(tmp_path: Path, index: Bm25Index) -> None:
    folder = tmp_path / "index"
    shorter = Corpus.from_documents(DOCUMENTS[:5], tmp_path / "other")
    with pytest.raises(IndexFolderError, match=r"holds 7 documents, its corpus .* 5; build the index again"):
        Bm25Index.load(folder, shorter)
    other = Corpus.from_documents([*DOCUMENTS[:6], Document("no", "", "!")], tmp_path / "other")
    with pytest.raises(IndexFolderError, match=index.corpus.sha256[:12]):
        open_index(folder, other)
    moved = Corpus.from_documents(DOCUMENTS, tmp_path / "other")
    assert ids(open_index(folder, moved).retrieve(["seine"], 1)) == [["pa"]]
    Corpus.from_documents(DOCUMENTS[:5], tmp_path / "corpus")
    with pytest.raises(CorpusError, match="made from another text"):
        open_index(folder)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "bm52"}, r"unknown kind 'bm52'; did you mean 'bm25'\?; known: 'bm25'"),
        ({"format": 2}, "format 2, this version reads format 1"),
        ({"documents": 9}, "holds 9 documents, its corpus .* 7"),
        ({"documents": None}, "is damaged .documents: "),
        ({"parameters": {"tokeniser": "old"}}, "tokeniser 'old', this version has"),
    ],
)
def test_changed_sidecar(tmp_path: Path, lexical: object, change: dict[str, object], said: str) -> None:
    path = tmp_path / "index" / "index.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(IndexFolderError, match=said):
        open_index(tmp_path / "index")


def test_tantivy_is_damaged_or_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    TantivyIndex.build(Corpus.from_documents(DOCUMENTS, tmp_path / "corpus"), tmp_path / "index")
    (tmp_path / "index" / "tantivy" / "meta.json").unlink()
    with pytest.raises(IndexFolderError, match="incomplete or damaged"):
        open_index(tmp_path / "index")
    monkeypatch.setitem(sys.modules, "tantivy", None)
    with pytest.raises(UserError, match=r"pip install 'mempo\[tantivy\]'; or take kind 'bm25'"):
        open_index(tmp_path / "index")


def test_not_an_index(tmp_path: Path, index: Bm25Index) -> None:
    (tmp_path / "file").write_text("x")
    for name, said in [("nowhere", "does not exist"), ("corpus", "has no index.json"), ("file", "is not a folder")]:
        with pytest.raises(IndexFolderError, match=said):
            open_index(tmp_path / name)
    (tmp_path / "index" / "bm25" / "vocab.index.json").unlink()
    with pytest.raises(IndexFolderError, match="incomplete or damaged"):
        open_index(tmp_path / "index")
    (tmp_path / "index" / "index.json").write_text("{")
    with pytest.raises(IndexFolderError, match="is damaged"):
        open_index(tmp_path / "index")


def test_building_spares_what_is_not_an_index(tmp_path: Path, index: Bm25Index) -> None:
    with pytest.raises(IndexFolderError, match="holds other files"):
        Bm25Index.build(index.corpus, tmp_path / "corpus")
    (tmp_path / "file").write_text("x")
    with pytest.raises(IndexFolderError, match="is a file"):
        Bm25Index.build(index.corpus, tmp_path / "file")
    assert len(Corpus.load(tmp_path / "corpus")) == 7


def test_a_failed_build_leaves_the_old_index(tmp_path: Path, index: Bm25Index, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("mempo.retrieval.bm25.write_sidecar", fail)
    with pytest.raises(OSError, match="No space"):
        Bm25Index.build(index.corpus, tmp_path / "index")
    assert ids(open_index(tmp_path / "index").retrieve(["seine"], 1)) == [["pa"]]
    assert not list(tmp_path.glob(".*"))


def test_two_builders_at_once(tmp_path: Path, index: Bm25Index) -> None:
    with ThreadPoolExecutor(4) as pool:
        built = list(pool.map(lambda _: Bm25Index.build(index.corpus, tmp_path / "index"), range(12)))
    assert all(ids(one.retrieve(["seine"], 1)) == [["pa"]] for one in built)
    assert not list(tmp_path.glob(".*"))


def test_text_changed_between_reading_and_indexing(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text('{"text": "alpha"}\n')
    corpus = Corpus.open(path)
    path.write_text('{"text": "omega"}\n')
    os.utime(path, ns=(1, 1))
    with pytest.raises(CorpusError, match="made from another text"):
        Bm25Index.build(corpus, tmp_path / "i")


def test_no_words_at_all(kind: Kind, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="none of its 1 documents has a word"):
        kind.build(Corpus.from_documents([Document("a", "", "!?")], tmp_path / "c"), tmp_path / "i")


def test_building_thousands_is_quick(tmp_path: Path) -> None:
    documents = (
        Document(str(i), f"Title {i}", f"one line with a number {i} and {i * 7 % 1000} words") for i in range(4000)
    )
    corpus = Corpus.from_documents(documents, tmp_path / "c")
    start = time.process_time()
    index = Bm25Index.build(corpus, tmp_path / "i")
    assert time.process_time() - start < 3.0  # 0.2 s where it was written
    assert ids(index.retrieve(["title 1234"], 1)) == [["1234"]]
