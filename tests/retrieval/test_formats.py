"""Forms of a corpus file: Zstandard and gzip beside plain, BEIR, and lines that are broken."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import zstandard

from mempo.retrieval.corpus import Corpus
from mempo.retrieval.errors import CorpusError
from mempo.storage.jsonl import is_compressed, open_bytes

LINES = [json.dumps({"_id": f"d{i}", "title": f"T{i}", "text": "body " * (i % 50), "metadata": {}}) for i in range(500)]
CONTENT = ("\n".join(LINES) + "\n").encode()


def zst(content: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(content)


@pytest.mark.parametrize(
    "packed",
    [
        CONTENT,
        gzip.compress(CONTENT, mtime=0),
        zst(CONTENT),
        zst(CONTENT[:700]) + zst(CONTENT[700:]),
        zstandard.ZstdCompressor(write_content_size=False, write_checksum=True).compress(CONTENT),
    ],
    ids=["plain", "gzip", "zstd", "two frames", "unknown size"],
)
def test_one_corpus_however_packed(tmp_path: Path, packed: bytes) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(packed)
    corpus = Corpus.open(path)
    assert [document.id for document in corpus] == [f"d{i}" for i in range(500)]
    assert (corpus[7].title, corpus[7].text) == ("T7", "body " * 7)
    (tmp_path / "plain.jsonl").write_bytes(CONTENT)
    assert corpus.sha256 == Corpus.open(tmp_path / "plain.jsonl").sha256, "the key of cached vectors is the text's"
    assert is_compressed(path) == (packed != CONTENT)


def test_zst_is_read_as_a_stream(tmp_path: Path) -> None:
    content = b"x" * 5_000_000 + b"\nend"
    (tmp_path / "f").write_bytes(zst(content))
    with open_bytes(tmp_path / "f") as file:
        assert file.read(3) == b"xxx"
        assert len(file.readline()) == 5_000_000 - 3 + 1
        assert file.read() == b"end"
    (tmp_path / "empty").write_bytes(zst(b""))
    with open_bytes(tmp_path / "empty") as file:
        assert file.read() == b""


@pytest.mark.parametrize("cut", [6, 40, -1])
def test_a_cut_or_damaged_zst_is_said(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "c.jsonl.zst"
    path.write_bytes(zst(CONTENT)[:cut])
    with pytest.raises(CorpusError, match=r"c\.jsonl\.zst: damaged zstd"):
        Corpus.open(path)
    packed = bytearray(zst(CONTENT))
    packed[len(packed) // 2 : len(packed) // 2 + 20] = b"\xff" * 20
    path.write_bytes(bytes(packed))
    with pytest.raises(CorpusError, match=r"c\.jsonl\.zst"):
        Corpus.open(path)


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zst])
def test_a_broken_line_is_named_with_its_file(tmp_path: Path, pack: type[bytes]) -> None:
    path = tmp_path / "c.jsonl.packed"
    lines = [*LINES[:3], '{"_id": "d3", "title": ', *LINES[4:6]]
    path.write_bytes(pack("\n".join(lines).encode()))
    with pytest.raises(CorpusError, match=r"c\.jsonl\.packed, line 4: not JSON"):
        Corpus.open(path, tmp_path / "index")
    path.write_bytes(pack("\n".join([*LINES[:2], '{"_id": "d2", "title": "T"}']).encode()))
    with pytest.raises(CorpusError, match=r'line 3: needs "contents" or "text"; it has "_id", "title"'):
        Corpus.open(path, tmp_path / "index")
