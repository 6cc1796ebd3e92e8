"""Ready-made FAISS files: taken where they lie, and refused when they do not fit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from mempo.config.retrieval import DenseSettings
from mempo.errors import UserError
from mempo.retrieval.corpus import Corpus
from mempo.retrieval.document import Document
from mempo.retrieval.errors import IndexFolderError
from mempo.retrieval.index import open_index
from tests.retrieval.encoders import HashEncoder, adopt_faiss

DOCUMENTS = [Document(str(i), f"word{i}", f"letter{i % 9} number{i % 7}") for i in range(40)]


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return Corpus.from_documents(DOCUMENTS, tmp_path / "corpus")


def vectors(count: int = 40) -> np.ndarray[Any, Any]:
    return HashEncoder().queries([f"{d.title}\n{d.text}" for d in DOCUMENTS[:count]])


def made(file: Path, factory: str = "Flat", metric: int = faiss.METRIC_INNER_PRODUCT, rows: Any = None) -> Path:
    rows = vectors() if rows is None else rows
    index: Any = faiss.index_factory(rows.shape[1], factory, metric)
    index.train(rows)
    index.add(rows)
    faiss.write_index(index, str(file))
    return file


def test_a_file_is_taken_where_it_lies(tmp_path: Path, corpus: Corpus) -> None:
    (tmp_path / "elsewhere").mkdir()
    file = made(tmp_path / "elsewhere" / "e5_Flat.index")
    index = adopt_faiss(corpus, tmp_path / "i", HashEncoder(), file)
    [hits] = index.retrieve(["word7"], 2)
    assert hits[0].document == DOCUMENTS[7]
    assert not list((tmp_path / "i").glob("*.faiss")), "62 GB are not copied"
    side = json.loads((tmp_path / "i" / "index.json").read_text())["parameters"]
    assert (side["agreement"], side["metric"], side["type"]) == (1.0, "inner_product", "IndexFlatIP")
    assert open_index(tmp_path / "i", encoder=HashEncoder()).retrieve(["word7"], 2) == [hits]
    file.rename(tmp_path / "moved.index")
    with pytest.raises(IndexFolderError, match=r"FAISS file of index .* is gone"):
        open_index(tmp_path / "i", encoder=HashEncoder())


def test_a_tree_moved_as_a_whole_still_finds_it(tmp_path: Path, corpus: Corpus) -> None:
    (tmp_path / "tree").mkdir()
    adopt_faiss(corpus, tmp_path / "tree" / "i", HashEncoder(), made(tmp_path / "tree" / "f.index"))
    shutil.move(tmp_path / "tree", tmp_path / "other")
    moved = Corpus.load(tmp_path / "corpus")
    assert open_index(tmp_path / "other" / "i", moved, encoder=HashEncoder()).retrieve(["word7"], 1)[0]


def test_search_settings_of_a_file(tmp_path: Path, corpus: Corpus) -> None:
    file = made(tmp_path / "f", "IVF8,Flat")
    adopt_faiss(corpus, tmp_path / "i", HashEncoder(), file, DenseSettings(nprobe=3))
    side = json.loads((tmp_path / "i" / "index.json").read_text())["parameters"]
    assert (side["search"], side["agreement"]) == ({"nprobe": 3}, None)


@pytest.mark.parametrize(
    ("factory", "metric", "rows", "said"),
    [
        ("Flat", 0, vectors(39), "holds 39 vectors, its corpus 40 documents; give the corpus it was made from"),
        ("Flat", 0, vectors()[:, :16].copy(), "vectors of 16 dimensions, the encoder makes 32"),
        ("Flat", faiss.METRIC_L1, None, "FAISS metric 2; known are 0"),
        ("Flat", 0, vectors()[::-1].copy(), r"mean cosine of -?0\.\d+, less than 0.7; check encoder"),
    ],
)
def test_what_does_not_fit(tmp_path: Path, corpus: Corpus, factory: str, metric: int, rows: Any, said: str) -> None:
    file = made(tmp_path / "f", factory, metric, rows)
    with pytest.raises(IndexFolderError, match=said):
        adopt_faiss(corpus, tmp_path / "i", HashEncoder(), file)
    assert not (tmp_path / "i").exists()
    assert file.is_file()


def test_disagreement_may_be_forced(tmp_path: Path, corpus: Corpus) -> None:
    adopt_faiss(corpus, tmp_path / "i", HashEncoder(), made(tmp_path / "f", rows=vectors()[::-1].copy()), force=True)
    assert json.loads((tmp_path / "i" / "index.json").read_text())["parameters"]["agreement"] < 0.7


def test_a_file_that_is_none(tmp_path: Path, corpus: Corpus) -> None:
    (tmp_path / "f").write_bytes(b"garbage" * 100)
    with pytest.raises(IndexFolderError, match=r"cannot be read .*not recognized"):
        adopt_faiss(corpus, tmp_path / "i", HashEncoder(), tmp_path / "f")
    with pytest.raises(IndexFolderError, match="does not exist"):
        adopt_faiss(corpus, tmp_path / "i", HashEncoder(), tmp_path / "none")
    whole = made(tmp_path / "whole").read_bytes()
    (tmp_path / "cut").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(IndexFolderError, match="cannot be read"):
        adopt_faiss(corpus, tmp_path / "i", HashEncoder(), tmp_path / "cut")


def test_a_file_cut_after_the_index_was_made(tmp_path: Path, corpus: Corpus) -> None:
    file = made(tmp_path / "f")
    adopt_faiss(corpus, tmp_path / "i", HashEncoder(), file)
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(IndexFolderError, match=r"has \d+ bytes, \d+ when index"):
        open_index(tmp_path / "i", encoder=HashEncoder())


def test_the_length_is_compared_again_at_load(tmp_path: Path, corpus: Corpus) -> None:
    adopt_faiss(corpus, tmp_path / "i", HashEncoder(), made(tmp_path / "f"))
    made(tmp_path / "f", rows=vectors(39))
    side = json.loads((tmp_path / "i" / "index.json").read_text())
    side["parameters"]["file"]["bytes"] = (tmp_path / "f").stat().st_size
    (tmp_path / "i" / "index.json").write_text(json.dumps(side))
    with pytest.raises(IndexFolderError, match="holds 39 vectors, its corpus 40 documents"):
        open_index(tmp_path / "i", encoder=HashEncoder())


def test_a_file_in_the_folder_to_be_replaced_is_spared(tmp_path: Path, corpus: Corpus) -> None:
    adopt_faiss(corpus, tmp_path / "i", HashEncoder(), made(tmp_path / "f"))
    inside = made(tmp_path / "i" / "mine.index")
    with pytest.raises(UserError, match="is about to be replaced; move it"):
        adopt_faiss(corpus, tmp_path / "i", HashEncoder(), inside)
    assert inside.is_file()


def test_ids_of_their_own_beyond_the_corpus(tmp_path: Path, corpus: Corpus) -> None:
    index: Any = faiss.IndexIDMap(faiss.IndexFlatIP(32))
    index.add_with_ids(vectors(), np.arange(40) + 1000)
    faiss.write_index(index, str(tmp_path / "f"))
    adopted = adopt_faiss(corpus, tmp_path / "i", HashEncoder(), tmp_path / "f", force=True)
    with pytest.raises(IndexFolderError, match=r"returned document 10\d\d of a corpus of 40"):
        adopted.retrieve(["word7"], 1)


def test_minus_one_is_no_document(tmp_path: Path, corpus: Corpus) -> None:
    file = made(tmp_path / "f", "IVF8,Flat")
    index = adopt_faiss(corpus, tmp_path / "i", HashEncoder(), file, DenseSettings(nprobe=1))
    raw = index._index.search(HashEncoder().queries(["word7"]), 40)[1][0]
    assert (raw == -1).any()
    assert [place for place, _ in index.rank(["word7"], 40)[0]] != []
    assert {place for place, _ in index.rank(["word7"], 40)[0]} == set(raw[raw >= 0].tolist())
