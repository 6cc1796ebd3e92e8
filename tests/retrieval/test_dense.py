"""The dense index: exact kinds against a plain product, what each factory needs, what is refused at load."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mempo.config.retrieval import DenseSettings, EncoderSettings
from mempo.errors import UserError
from mempo.retrieval import faiss as faiss_index
from mempo.retrieval.corpus import Corpus
from mempo.retrieval.document import Document, Retriever
from mempo.retrieval.errors import IndexFolderError
from mempo.retrieval.index import open_index
from tests.retrieval.encoders import HashEncoder, build_dense, tiny_bert

DOCUMENTS = [Document(str(i), f"word{i}", f"letter{i % 9} number{i % 7}", f"http://w/{i}") for i in range(300)]
QUERIES = ["word7", "letter3 number2", "word250 letter1", "nothing of this"]


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return Corpus.from_documents(DOCUMENTS, tmp_path / "corpus")


def expected(metric: str, top_k: int) -> list[list[str]]:
    """By a plain product over all documents; ties by place."""
    encoder = HashEncoder()
    passages = encoder.queries([f"{d.title}\n{d.text}" for d in DOCUMENTS]).astype(np.float64)
    found = []
    for query in encoder.queries(QUERIES).astype(np.float64):
        scores = passages @ query if metric == "inner_product" else -((passages - query) ** 2).sum(axis=1)
        found.append([str(i) for i in np.argsort(-scores, kind="stable")[:top_k]])
    return found


@pytest.mark.parametrize("metric", ["inner_product", "l2"])
def test_flat_is_exact(tmp_path: Path, corpus: Corpus, metric: Any) -> None:
    index = build_dense(corpus, tmp_path / "i", HashEncoder(), tmp_path, DenseSettings(metric=metric))
    lists = index.retrieve(QUERIES, 3)
    assert [[hit.document.id for hit in hits] for hits in lists] == expected(metric, 3)
    assert all([h.score for h in hits] == sorted((h.score for h in hits), reverse=True) for hits in lists)
    assert isinstance(index, Retriever)
    assert index.access(["http://w/5", "no"]) == [DOCUMENTS[5], None]
    assert open_index(tmp_path / "i", encoder=HashEncoder()).retrieve(QUERIES, 3) == lists
    assert open_index(tmp_path / "i", encoder=HashEncoder(), memory="load").retrieve(QUERIES, 3) == lists


@pytest.mark.parametrize("query", ["", " \n", "?!", "\x00", "\ud800"])
def test_nothing_to_look_for(tmp_path: Path, corpus: Corpus, query: str) -> None:
    index = build_dense(corpus, tmp_path / "i", HashEncoder(), tmp_path)
    [empty, found] = index.retrieve([query, "word7"], 2)
    assert (empty, found[0].document.id) == ([], "7")
    with pytest.raises(ValueError, match="top_k"):
        index.retrieve(["x"], 0)
    assert len(index.retrieve(["word7"], 1000)[0]) == 300


@pytest.mark.parametrize("factory", ["SQfp16", "SQ8", "HNSW16", "IVF8,Flat", "IVF4,SQ8", "PQ16x4", "PCA24,Flat"])
def test_other_kinds_find_the_nearest(tmp_path: Path, corpus: Corpus, factory: str) -> None:
    index = build_dense(corpus, tmp_path / "i", HashEncoder(), tmp_path, DenseSettings(factory=factory))
    lists = index.retrieve(["word7 letter7 number0", "word123 letter6 number4"], 5)
    assert "7" in [hit.document.id for hit in lists[0]]
    assert "123" in [hit.document.id for hit in lists[1]]
    side = json.loads((tmp_path / "i" / "index.json").read_text())["parameters"]
    assert (side["factory"], side["dimension"], side["identity"]) == (factory, 32, {"name": "hash", "seed": 0})
    [again] = open_index(tmp_path / "i", encoder=HashEncoder()).retrieve(["word7 letter7 number0"], 5)
    assert [hit.document for hit in again] == [hit.document for hit in lists[0]]


@pytest.mark.parametrize(
    "factory", ["Flat", "SQ8", "SQfp16", "PQ8x4", "HNSW8", "HNSW8,SQ8", "IVF16,Flat", "IVF16,SQ8", "IVF16,PQ8x4"]
)
def test_sizes_by_arithmetic_are_those_of_files(tmp_path: Path, factory: str) -> None:
    vectors = np.random.default_rng(0).standard_normal((1500, 32)).astype(np.float32)
    index = faiss_index.make(factory, 32, "inner_product")
    faiss_index.train(index, vectors, faiss_index.sample_rows(index, 1500, None), 0)
    faiss_index.add(index, vectors, lambda *_: None)
    faiss_index.write(index, tmp_path / "f")
    assert (tmp_path / "f").stat().st_size == pytest.approx(faiss_index.size_of(factory, 32).of(1500), rel=0.03)


def test_defaults_of_a_search() -> None:
    def found(factory: str, nprobe: int | None = None, ef_search: int | None = None) -> dict[str, int]:
        return faiss_index.search_settings(faiss_index.make(factory, 32, "l2"), nprobe, ef_search)

    assert found("Flat") == {}
    assert found("IVF4,Flat") == {"nprobe": 4}
    assert found("IVF64,Flat") == {"nprobe": 8}
    assert found("IVF1024,PQ8x4") == {"nprobe": 64}
    assert found("IVF65536,Flat") == {"nprobe": 128}
    assert found("OPQ4,IVF64,PQ4x4", nprobe=3) == {"nprobe": 3}
    assert found("HNSW8") == {"ef_search": 64}
    assert found("HNSW8,SQ8", ef_search=10) == {"ef_search": 10}
    with pytest.raises(UserError, match="nprobe is 3, but an index of type IndexFlat has no such setting"):
        found("Flat", nprobe=3)
    with pytest.raises(UserError, match="ef_search is 3"):
        found("IVF64_HNSW8,Flat", ef_search=3)


def test_training_needs_enough_vectors(tmp_path: Path, corpus: Corpus, caplog: pytest.LogCaptureFixture) -> None:
    for settings, said in [
        (DenseSettings(factory="IVF512,Flat"), "needs at least 512 vectors .* there are 300; take Flat or SQ8"),
        (DenseSettings(factory="IVF4,PQ8x9"), "needs at least 512 vectors"),
        (DenseSettings(factory="IVF64,Flat", train_sample=50), "at least 64 .* 50 of 300 in the sample"),
    ]:
        encoder = HashEncoder()
        with pytest.raises(UserError, match=said):
            build_dense(corpus, tmp_path / "i", encoder, tmp_path, settings)
        assert encoder.encoded == 0, "refused before anything is encoded"
    build_dense(corpus, tmp_path / "i", HashEncoder(), tmp_path, DenseSettings(factory="IVF16,Flat"))
    assert "trained on 300 vectors; FAISS advises 624 for 16 centroids" in caplog.text


@pytest.mark.parametrize("factory", ["Flatt", "PQ7", "IVF8", "", "IDMap,Flat"])
def test_factories_that_make_nothing(tmp_path: Path, corpus: Corpus, factory: str) -> None:
    encoder = HashEncoder()
    with pytest.raises(UserError, match=f"factory '{factory}'"):
        build_dense(corpus, tmp_path / "i", encoder, tmp_path, DenseSettings(factory=factory))
    assert encoder.encoded == 0


def test_the_sample_is_drawn_by_the_seed(tmp_path: Path, corpus: Corpus) -> None:
    def built(name: str, seed: int) -> bytes:
        settings = DenseSettings(factory="IVF4,Flat", train_sample=40, seed=seed)
        build_dense(corpus, tmp_path / name, HashEncoder(), tmp_path, settings)
        return (tmp_path / name / "vectors.faiss").read_bytes()

    assert built("a", 0) == built("b", 0) != built("c", 1)


def test_empty_lists_give_fewer_and_no_minus_one(tmp_path: Path, corpus: Corpus) -> None:
    settings = DenseSettings(factory="IVF32,Flat", nprobe=1)
    index = build_dense(corpus, tmp_path / "i", HashEncoder(), tmp_path, settings)
    raw = index._index.search(HashEncoder().queries(["word7"]), 300)[1]
    assert (raw == -1).any(), "one list of 32 holds fewer than 300"
    ranking = index.rank(["word7"], 300)[0]
    assert len(ranking) == int((raw >= 0).sum()) < 300
    assert min(place for place, _ in ranking) >= 0


def test_only_vectors_of_one_encoder(tmp_path: Path, corpus: Corpus) -> None:
    build_dense(corpus, tmp_path / "i", HashEncoder(seed=0), tmp_path)
    with pytest.raises(IndexFolderError, match=r"another encoder \(seed 0 in the index, 1 in the encoder\)"):
        open_index(tmp_path / "i", encoder=HashEncoder(seed=1))
    with pytest.raises(IndexFolderError, match="encoder that has no files; pass it to open_index"):
        open_index(tmp_path / "i")


def test_the_encoder_is_found_by_its_place(tmp_path: Path, corpus: Corpus) -> None:
    from mempo.retrieval.encoder import TransformersEncoder

    bert = tiny_bert(tmp_path / "bert")
    index = build_dense(corpus, tmp_path / "i", TransformersEncoder(EncoderSettings(path=str(bert))), tmp_path)
    found = index.retrieve(["the capital of france"], 3)
    assert open_index(tmp_path / "i").retrieve(["the capital of france"], 3) == found
    shutil.move(bert, tmp_path / "moved")
    with pytest.raises(UserError, match=r"no encoder folder .*encoder\.path in .*index\.json"):
        open_index(tmp_path / "i")
    moved = TransformersEncoder(EncoderSettings(path=str(tmp_path / "moved")))
    assert open_index(tmp_path / "i", encoder=moved).retrieve(["the capital of france"], 3) == found
    tiny_bert(bert, seed=1)
    with pytest.raises(IndexFolderError, match="weights_sha256"):
        open_index(tmp_path / "i")


def edit(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    side = json.loads((folder / "index.json").read_text())
    change(side["parameters"])
    (folder / "index.json").write_text(json.dumps(side))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda p: p["search"].update(nprobe=0), "search: nprobe 0 cannot be used"),
        (lambda p: p["search"].update(nprobes=3), "search: nprobes 3 cannot be used"),
        (lambda p: p["search"].update(ef_search=3), "has no ef_search"),
        (lambda p: p.update(dimension=31), "holds vectors of 32 dimensions, the encoder makes 31"),
        (lambda p: p["file"].update(bytes=1), "bytes, 1 when index"),
        (lambda p: p["file"].update(path="gone"), "the FAISS file of index .* is gone"),
        (lambda p: p.pop("file"), "names no FAISS file"),
    ],
)
def test_a_changed_sidecar(tmp_path: Path, corpus: Corpus, change: Callable[[dict[str, Any]], None], said: str) -> None:
    build_dense(corpus, tmp_path / "i", HashEncoder(), tmp_path, DenseSettings(factory="IVF4,Flat"))
    edit(tmp_path / "i", lambda parameters: parameters["search"].update(nprobe=2))
    open_index(tmp_path / "i", encoder=HashEncoder())
    edit(tmp_path / "i", change)
    with pytest.raises(IndexFolderError, match=said):
        open_index(tmp_path / "i", encoder=HashEncoder())


def test_too_little_memory_is_said_before_encoding(
    tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("mempo.retrieval.dense_build.free_bytes", lambda: 1000)
    encoder = HashEncoder()
    with pytest.raises(UserError, match=r"building Flat of 300 x 32: needs 38 KiB .* 1 KiB free; take a smaller"):
        build_dense(corpus, tmp_path / "i", encoder, tmp_path)
    assert encoder.encoded == 0
    build_dense(corpus, tmp_path / "i", encoder, tmp_path, force=True)
    monkeypatch.setattr("mempo.retrieval.index.free_bytes", lambda: 1000)
    with pytest.raises(UserError, match=r"needs .* 1 KiB free; take memory=map"):
        open_index(tmp_path / "i", encoder=encoder, memory="load")
    open_index(tmp_path / "i", encoder=encoder, memory="load", force=True)
    assert not caplog.text
    open_index(tmp_path / "i", encoder=encoder)
    assert "what does not fit is read from disk at every search" in caplog.text


def test_a_lexical_index_opens_without_torch(tmp_path: Path, corpus: Corpus) -> None:
    from mempo.retrieval.index import Bm25Index

    Bm25Index.build(corpus, tmp_path / "i")
    program = (
        "import sys; from mempo.retrieval.index import open_index, memory_need\n"
        "memory_need(sys.argv[1]); assert open_index(sys.argv[1]).retrieve(['word7'], 1)[0]\n"
        "print([name for name in ('torch', 'faiss', 'transformers', 'tantivy') if name in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    said = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "i")], capture_output=True, text=True, env=environment
    )
    assert said.stdout.strip() == "[]", said.stderr
