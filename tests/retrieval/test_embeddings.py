"""Vectors on disk: made once, gone on with after a kill, never mixed with those of another corpus or encoder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mempo.errors import UserError
from mempo.retrieval.corpus import Corpus
from mempo.retrieval.document import Document
from mempo.retrieval.embeddings import default_cache, embed_corpus, forget_embeddings
from mempo.retrieval.errors import IndexFolderError
from tests.retrieval.encoders import HashEncoder, tiny_bert

DOCUMENTS = [Document(str(i), f"T{i}", f"text number {i} of {i * 7 % 5}") for i in range(25)]


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return Corpus.from_documents(DOCUMENTS, tmp_path / "corpus")


def test_rows_are_in_the_order_of_the_corpus(tmp_path: Path, corpus: Corpus) -> None:
    encoder = HashEncoder()
    seen: list[tuple[int, int]] = []
    vectors = embed_corpus(corpus, encoder, tmp_path, progress=lambda *done: seen.append(done), chunk_rows=10)
    assert isinstance(vectors, np.memmap)
    assert vectors.dtype == np.float32
    np.testing.assert_array_equal(vectors, encoder.queries([f"T{i}\n{d.text}" for i, d in enumerate(DOCUMENTS)]))
    assert seen == [(0, 25), (10, 25), (20, 25), (25, 25)]


def test_a_killed_build_goes_on_and_equals_an_unbroken_one(tmp_path: Path, corpus: Corpus) -> None:
    whole = embed_corpus(corpus, HashEncoder(), tmp_path / "whole", chunk_rows=4)
    killed = HashEncoder(fail_after=10)
    with pytest.raises(KeyboardInterrupt):
        embed_corpus(corpus, killed, tmp_path / "cache", chunk_rows=4)
    assert killed.encoded == 8, "two whole chunks"
    again = HashEncoder()
    found = embed_corpus(corpus, again, tmp_path / "cache", chunk_rows=4)
    assert again.encoded == 25 - 8
    assert found.tobytes() == whole.tobytes()
    idle = HashEncoder(fail_after=0)
    assert embed_corpus(corpus, idle, tmp_path / "cache", chunk_rows=4).tobytes() == whole.tobytes()


def test_a_real_encoder_goes_on_bit_by_bit(tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    from mempo.config.retrieval import EncoderSettings
    from mempo.retrieval.encoder import TransformersEncoder

    encoder = TransformersEncoder(EncoderSettings(path=str(tiny_bert(tmp_path / "bert")), batch=3))
    whole = embed_corpus(corpus, encoder, tmp_path / "whole", chunk_rows=8)
    passages, calls = encoder.passages, []

    def killed(texts: Any) -> Any:
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(len(texts))
        return passages(texts)

    monkeypatch.setattr(encoder, "passages", killed)
    with pytest.raises(KeyboardInterrupt):
        embed_corpus(corpus, encoder, tmp_path / "cache", chunk_rows=8)
    monkeypatch.undo()
    assert embed_corpus(corpus, encoder, tmp_path / "cache", chunk_rows=8).tobytes() == whole.tobytes()


def test_another_encoder_or_corpus_is_another_folder(tmp_path: Path, corpus: Corpus) -> None:
    cache = tmp_path / "cache"
    first = embed_corpus(corpus, HashEncoder(seed=0), cache)
    second = embed_corpus(corpus, HashEncoder(seed=1), cache)
    assert not np.array_equal(first, second)
    changed = Corpus.from_documents([*DOCUMENTS[:-1], Document("24", "T24", "changed")], tmp_path / "other")
    encoder = HashEncoder(seed=0)
    third = embed_corpus(changed, encoder, cache)
    assert encoder.encoded == 25
    np.testing.assert_array_equal(first[:-1], third[:-1])
    assert not np.array_equal(first[-1], third[-1])
    assert len(list((cache / "embeddings").iterdir())) == 3
    forget_embeddings(changed, encoder, cache)
    assert len(list((cache / "embeddings").iterdir())) == 2


@pytest.mark.parametrize("damage", ["short", "garbage", "key", "count"])
def test_damaged_vectors_are_made_again(tmp_path: Path, corpus: Corpus, damage: str) -> None:
    expected = embed_corpus(corpus, HashEncoder(), tmp_path / "cache").tobytes()
    [folder] = (tmp_path / "cache" / "embeddings").iterdir()
    side = json.loads((folder / "embeddings.json").read_text())
    match damage:
        case "short":
            (folder / "vectors.bin").write_bytes(b"\0" * 10)
        case "garbage":
            (folder / "embeddings.json").write_text("{")
        case "key":
            side["key"]["encoder"]["seed"] = 9
            (folder / "embeddings.json").write_text(json.dumps(side))
        case _:
            (folder / "embeddings.json").write_text(json.dumps({**side, "done": 26}))
    encoder = HashEncoder()
    assert embed_corpus(corpus, encoder, tmp_path / "cache").tobytes() == expected
    assert encoder.encoded == 25


def test_half_precision_halves_the_file(tmp_path: Path, corpus: Corpus) -> None:
    exact = embed_corpus(corpus, HashEncoder(), tmp_path)
    half = embed_corpus(corpus, HashEncoder(), tmp_path, stored_as="float16")
    assert half.nbytes * 2 == exact.nbytes
    np.testing.assert_allclose(half.astype(np.float32), exact, atol=1e-3)


def test_vectors_that_are_none_are_refused(tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = HashEncoder()
    good = encoder.queries

    def broken(texts: Any) -> Any:
        vectors = good(texts)
        vectors[3, 0] = np.nan
        return vectors

    monkeypatch.setattr(encoder, "passages", broken)
    with pytest.raises(IndexFolderError, match=r"not finite for document '3' .* take dtype float32"):
        embed_corpus(corpus, encoder, tmp_path)
    monkeypatch.setattr(encoder, "passages", lambda texts: good(texts)[:, :5])
    with pytest.raises(IndexFolderError, match=r"shape \(25, 5\) for 25 texts"):
        embed_corpus(corpus, encoder, tmp_path)


def test_a_full_disk_is_said_before_encoding(tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = HashEncoder(dimension=64)
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 100})())
    with pytest.raises(UserError, match=r"vectors of 25 documents take .* 0\.0 GiB free; .*cache="):
        embed_corpus(corpus, encoder, tmp_path)
    assert encoder.encoded == 0


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMPO_CACHE", "/here")
    assert default_cache() == Path("/here")
    monkeypatch.delenv("MEMPO_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert default_cache() == Path("/cache/mempo")
