"""A corpus: the forms users bring, what is refused and how it is said, and the text staying on disk."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mempo.retrieval import lookup
from mempo.retrieval.corpus import Corpus, Document
from mempo.retrieval.errors import CorpusError
from mempo.retrieval.rows import contents_of, split_contents


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


FORMS = [
    (
        {"id": "0", "contents": '"Evan Morris"\nEvan Morris was ...'},
        Document("0", "Evan Morris", "Evan Morris was ..."),
    ),
    ({"id": 7, "contents": '"A"\nx', "url": "http://a"}, Document("7", "A", "x", "http://a")),
    ({"url": "http://a", "contents": "no title\nbody"}, Document("0", "", "no title\nbody", "http://a")),
    ({"_id": "d1", "title": "T", "text": "body", "metadata": {}}, Document("d1", "T", "body")),
    ({"title": None, "text": "body"}, Document("0", "", "body")),
    ({"text": ""}, Document("0", "", "")),
    ({"docid": "BC-12", "text": "body", "url": "u"}, Document("BC-12", "", "body", "u")),
    ({"doc_id": 5, "passage": "body"}, Document("5", "", "body")),
    ({"pid": 0, "text": "body"}, Document("0", "", "body")),
    ({"docno": "FT-1", "title": "T", "body": "body"}, Document("FT-1", "T", "body")),
    ({"id": None, "docid": "d", "contents": "body"}, Document("d", "", "body")),
    ({"id": "s", "text": "a\ud800b"}, Document("s", "", "a\ufffdb")),
    ({"id": "e", "contents": '"\U0001f600"\nπ'}, Document("e", "\U0001f600", "π")),
]


@pytest.mark.parametrize(("row", "document"), FORMS)
def test_forms(tmp_path: Path, row: dict[str, object], document: Document) -> None:
    assert list(Corpus.open(write(tmp_path / "c.jsonl", row))) == [document]


def test_contents_round_trip() -> None:
    for title, text in [("A", "b"), ("", '"quoted"\nrest'), ('The "X"', "a\n\nb"), ('"', "")]:
        assert split_contents(contents_of(Document("0", title, text))) == (title, text)
    assert contents_of(Document("0", "two\nlines", "b")) == '"two lines"\nb'


def test_access_by_position_id_and_url(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_bytes(
        b'\xef\xbb\xbf{"id": "a", "text": "1", "url": "u"}\r\n\n  \n{"text": "2", "url": "u"}\n{"id": "c", "text": "3"}'
    )
    corpus = Corpus.open(path)
    assert len(corpus) == 3
    assert [document.id for document in corpus] == ["a", "1", "c"]
    assert corpus[-1] == corpus[2] == corpus[int(np.int64(2))] == Document("c", "", "3")
    assert corpus.by_id("1") == Document("1", "", "2", "u")
    assert corpus.by_id("nobody") is None
    assert corpus.by_url("u") == corpus[0], "the first of several passages of one page"
    assert corpus.by_url("\ud800") is None
    for wrong in (3, -4):
        with pytest.raises(IndexError):
            corpus[wrong]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"text": "a"}\n{"text": "b"', "line 2: not JSON"),
        (b'{"text": "a"}\n\n[1]\n', "line 3: expected one JSON object per line, got a list"),
        (b'{"text": "a"}\n{"id": "x"}\n', 'line 2: needs "contents" or "text"; it has "id"'),
        (b"{}\n", 'line 1: needs "contents" or "text"; it has no keys'),
        (b'{"text": 5}\n', 'line 1: "text" must be a string, not a number'),
        (b'{"text": "a", "url": []}\n', 'line 1: "url" must be a string, not a list'),
        (b'{"id": 1.5, "text": "a"}\n', 'line 1: "id" must be a string or an integer, not a number'),
        (b'{"id": true, "text": "a"}\n', 'line 1: "id" must be a string or an integer, not a boolean'),
        (b'{"text": "\xff"}\n', "line 1: not UTF-8 (byte 0xff"),
        (b'{"text": ' + b"[" * 100_000 + b"\n", "line 1: not usable JSON"),
        (b'{"text": ' + b"9" * 5000 + b"}\n", "line 1: not usable JSON"),
        (b"", "holds no documents (0 bytes)"),
        (b"\n \n", "holds no documents"),
        (
            b'{"id": "x", "text": "a"}\n\n{"text": "b"}\n{"id": "x", "text": "c"}',
            "id 'x' is on line 1 and on line 4",
        ),
        (b'{"text": "a"}\n{"id": 0, "text": "b"}\n', "id '0' is on line 1 and on line 2"),
    ],
)
def test_broken_files(tmp_path: Path, content: bytes, said: str) -> None:
    plain, packed = tmp_path / "c.jsonl", tmp_path / "c.jsonl.gz"
    plain.write_bytes(content)
    packed.write_bytes(gzip.compress(content))
    for path in (plain, packed):
        with pytest.raises(CorpusError) as error:
            Corpus.open(path, tmp_path / "index")
        assert said in str(error.value)
        assert str(path) in str(error.value)
        assert "\n" not in str(error.value)
    assert [p.name for p in (tmp_path / "index").iterdir()] == [], "nothing half made stays"


def test_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="does not exist"):
        Corpus.open(tmp_path / "nowhere.jsonl")
    with pytest.raises(CorpusError, match="is a folder"):
        Corpus.open(tmp_path)
    damaged = tmp_path / "c.jsonl.gz"
    damaged.write_bytes(gzip.compress(b'{"text": "a"}\n' * 1000)[:-20])
    with pytest.raises(CorpusError, match=r"c\.jsonl\.gz: damaged gzip"):
        Corpus.open(damaged)


def test_gzip_is_unpacked_once_into_the_index_folder(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "a"}\n{"text": "b"}\n'))
    corpus = Corpus.open(path, tmp_path / "index")
    assert [d.text for d in corpus] == ["a", "b"]
    text = tmp_path / "index" / "corpus.jsonl"
    before = text.stat().st_ino
    assert len(Corpus.open(path, tmp_path / "index")) == 2
    assert text.stat().st_ino == before, "the second time it is found"
    text.unlink()
    assert len(Corpus.open(path, tmp_path / "index")) == 2, "what is lost is made again"
    path.write_bytes(gzip.compress(b'{"text": "other"}\n'))
    assert [d.text for d in Corpus.open(path, tmp_path / "index")] == ["other"]


def test_lookups_are_mapped_and_follow_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "c.jsonl", {"text": "a"}, {"text": "b"})
    corpus = Corpus.open(path, tmp_path / "index")
    assert isinstance(corpus.lookups.offsets, np.memmap)
    assert not (tmp_path / "index" / "corpus.jsonl").exists(), "a plain file is not copied"
    write(path, {"text": "a"}, {"text": "b"}, {"text": "c"})
    with pytest.raises(CorpusError, match="made from another text"):
        Corpus.load(tmp_path / "index")
    assert len(Corpus.open(path, tmp_path / "index")) == 3


def test_same_size_other_text_is_refused_and_touch_is_not(tmp_path: Path) -> None:
    path = write(tmp_path / "c.jsonl", {"text": "a"})
    Corpus.open(path, tmp_path / "index")
    os.utime(path, ns=(1, 1))
    assert Corpus.load(tmp_path / "index")[0].text == "a"
    write(path, {"text": "b"})
    with pytest.raises(CorpusError, match="sha256"):
        Corpus.load(tmp_path / "index")


def test_a_moved_tree_finds_its_text(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    path = write(tmp_path / "one" / "c.jsonl", {"text": "a"})
    Corpus.open(path, tmp_path / "one" / "index")
    shutil.move(tmp_path / "one", tmp_path / "two")
    assert Corpus.load(tmp_path / "two" / "index")[0].text == "a"
    (tmp_path / "two" / "c.jsonl").rename(tmp_path / "elsewhere.jsonl")
    with pytest.raises(CorpusError, match="is gone"):
        Corpus.load(tmp_path / "two" / "index")
    assert Corpus.load(tmp_path / "two" / "index", tmp_path / "elsewhere.jsonl")[0].text == "a"


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: np.save(folder / "corpus.offsets.npy", np.array([0], dtype=np.int64)),
        lambda folder: (folder / "corpus.json").write_text('{"format": 99}'),
        lambda folder: (folder / "corpus.json").write_text('{"format": 1}'),
    ],
    ids=["short", "format", "lacking"],
)
def test_another_folder_than_was_written(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    """Every damage to every file: test_damaged_index.py."""
    Corpus.from_documents([Document("a", "", "x"), Document("b", "", "y")], tmp_path / "c")
    damage(tmp_path / "c")
    with pytest.raises(CorpusError, match="again"):
        Corpus.load(tmp_path / "c")


@pytest.mark.parametrize("renames", range(5))
def test_a_text_of_ours_never_stands_alone(tmp_path: Path, renames: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run refuses to write over a corpus.jsonl without look-ups, which is somebody else's."""
    replace, left = os.replace, iter(range(renames))

    def dying(source: Path, target: Path) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        replace(source, target)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):  # noqa: PT012
        patch.setattr("mempo.storage.atomic.os.replace", dying)
        Corpus.from_documents([Document("a", "", "x")], tmp_path / "c")
        raise KeyboardInterrupt
    assert not (tmp_path / "c/corpus.jsonl").exists() or (tmp_path / "c/corpus.json").exists()
    assert len(Corpus.from_documents([Document("a", "", "x"), Document("b", "", "y")], tmp_path / "c")) == 2


def test_from_documents(tmp_path: Path) -> None:
    documents = [
        Document("a", 'T "q"', "line\nline\u2028", "http://x"),
        Document("b", "", '"odd"\n'),
        Document("c", "", "\ud800"),
    ]
    (tmp_path / "questions.jsonl").write_text("stays")
    corpus = Corpus.from_documents(iter(documents), tmp_path)
    assert list(corpus) == [*documents[:2], Document("c", "", "\ufffd")]
    assert corpus.by_url("http://x") == documents[0]
    assert Corpus.open(tmp_path).sha256 == corpus.sha256
    assert Corpus.open(tmp_path / "corpus.jsonl").sha256 == corpus.sha256
    with pytest.raises(CorpusError, match="id 'a' is on line 1 and on line 2"):
        Corpus.from_documents([documents[0], documents[0]], tmp_path)
    with pytest.raises(CorpusError, match="no documents"):
        Corpus.from_documents([], tmp_path)
    assert len(Corpus.load(tmp_path)) == 3, "a failed writing leaves the old one"
    assert not list(tmp_path.glob(".*"))
    assert (tmp_path / "questions.jsonl").read_text() == "stays"


def test_threads_read_the_right_documents(tmp_path: Path) -> None:
    documents = [Document(f"d{i}", f"T{i}", str(i) * (i % 50)) for i in range(300)]
    corpus = Corpus.from_documents(documents, tmp_path)
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda i: corpus[i] == documents[i] == corpus.by_id(f"d{i}"), [*range(300)] * 10))
        assert all(found == documents for found in pool.map(lambda _: list(corpus), range(32)))


def test_equal_hashes_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "_hash", lambda key: 5)
    corpus = Corpus.from_documents([Document("a", "", "1", "u"), Document("b", "", "2", "v")], tmp_path)
    assert corpus.by_id("b") == corpus.by_url("v") == corpus[1]
    assert corpus.by_id("c") is None


# --- tables --------------------------------------------------------------------------------------------------------

PSGS = 'id\ttext\ttitle\n1\t"Aaron said ""I"" and went"\tAaron\n2\t"two\nlines"\t"A ""B"" C"\n\n7\tplain\tP\n'
PSGS_DOCUMENTS = [
    Document("1", "Aaron", 'Aaron said "I" and went'),
    Document("2", 'A "B" C', "two\nlines"),
    Document("7", "P", "plain"),
]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kept", [False, True])
def test_wikipedia_passages_of_dpr(tmp_path: Path, packed: bool, kept: bool) -> None:
    path = tmp_path / "psgs_w100.tsv"
    path.write_bytes(gzip.compress(PSGS.encode()) if packed else PSGS.encode())
    folder = tmp_path / "corpus" if kept else None
    corpus = Corpus.open(path, folder)
    assert list(corpus) == PSGS_DOCUMENTS
    assert corpus.by_id("2") == PSGS_DOCUMENTS[1]
    if folder is not None:
        assert list(Corpus.open(path, folder)) == PSGS_DOCUMENTS, "found again"


@pytest.mark.parametrize(
    ("name", "text", "documents"),
    [
        ("c.csv", 'docid,text,url\nd1,"a, b",u\nd2,c,\n', [Document("d1", "", "a, b", "u"), Document("d2", "", "c")]),
        ("c.csv", "\ufefftext;title\r\na;T\r\n", [Document("0", "T", "a")]),
        (
            "collection.tsv",
            '0\tThe "presence\n1\tof it"\n',
            [Document("0", "", 'The "presence'), Document("1", "", 'of it"')],
        ),
    ],
)
def test_tables_are_told_by_their_first_line(tmp_path: Path, name: str, text: str, documents: list[Document]) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8", newline="")
    assert list(Corpus.open(tmp_path / name)) == documents


def test_a_parquet_corpus(tmp_path: Path) -> None:
    rows = [{"docid": str(i), "text": f"t{i}", "url": "u", "embedding": [0.5]} for i in range(3)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "c.parquet")
    assert list(Corpus.open(tmp_path / "c.parquet")) == [Document(str(i), "", f"t{i}", "u") for i in range(3)]
    (tmp_path / "c.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(CorpusError, match="damaged parquet file"):
        Corpus.open(tmp_path / "c.parquet")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("id\ttext\n1\ta\n2\n", "line 3: it has 1 columns, the table 2"),
        ('id\ttext\n1\t"a\nb"\n1\tc\n', "id '1' is on line 2 and on line 4"),
        ("id\ttext\n", "holds no documents"),
        ("title\tlabel\na\tb\n", "line 1: not JSON"),
    ],
)
def test_broken_tables_name_their_own_lines(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "c.tsv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(CorpusError) as error:
        Corpus.open(path)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    path.write_bytes(b"id\ttext\n1\tQu\xe9\n")
    with pytest.raises(CorpusError, match="not UTF-8"):
        Corpus.open(path)
