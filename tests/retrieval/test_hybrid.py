"""Reciprocal rank fusion by hand, and an index that asks both."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mempo.config.retrieval import DenseSettings
from mempo.retrieval.corpus import Corpus
from mempo.retrieval.dense_build import prepare
from mempo.retrieval.document import Document
from mempo.retrieval.errors import IndexFolderError
from mempo.retrieval.hybrid import HybridIndex, HybridSettings, reciprocal_rank_fusion
from mempo.retrieval.index import memory_need, open_index
from tests.retrieval.encoders import HashEncoder

DOCUMENTS = [Document(str(i), f"word{i}", f"letter{i % 9} number{i % 7}") for i in range(60)]


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return Corpus.from_documents(DOCUMENTS, tmp_path / "corpus")


def build(tmp_path: Path, corpus: Corpus, settings: HybridSettings | None = None) -> HybridIndex:
    encoder = HashEncoder()
    prepared = prepare(corpus, encoder, tmp_path, DenseSettings())
    return HybridIndex.build(corpus, tmp_path / "i", encoder, prepared, settings)


def test_fusion_by_hand() -> None:
    fused = reciprocal_rank_fusion([[(5, 9.0), (2, 8.0), (7, 1.0)], [(2, 0.3), (9, 0.2)]])
    assert [place for place, _ in fused] == [2, 5, 9, 7]
    assert dict(fused) == pytest.approx({2: 1 / 62 + 1 / 61, 5: 1 / 61, 9: 1 / 62, 7: 1 / 63})
    assert reciprocal_rank_fusion([[(4, 1.0)], [(3, 1.0)]]) == [(3, 1 / 61), (4, 1 / 61)], "ties by place"
    assert reciprocal_rank_fusion([[(4, 1.0)], []], k=1) == [(4, 0.5)]
    assert reciprocal_rank_fusion([[], []]) == []


@pytest.mark.parametrize("lexical", ["bm25", "tantivy"])
def test_both_are_asked(tmp_path: Path, corpus: Corpus, lexical: str) -> None:
    index = build(tmp_path, corpus, HybridSettings(lexical=lexical, depth=20))  # type: ignore[arg-type]
    query = "word7 letter7 number0"
    [found] = index.retrieve([query], 5)
    rankings = [index.lexical.rank([query], 20)[0], index.dense.rank([query], 20)[0]]
    assert [(int(h.document.id), h.score) for h in found] == reciprocal_rank_fusion(rankings)[:5]
    assert found[0].document.id == "7"
    assert lexical == index.lexical.KIND  # type: ignore[attr-defined]
    assert open_index(tmp_path / "i", encoder=HashEncoder()).retrieve([query], 5) == [found]
    assert index.retrieve(["", "zzz"], 3)[0] == []
    assert len(index.retrieve(["zzz"], 3)[0]) == 3, "no word is known, but vectors are near"
    assert set(memory_need(tmp_path / "i").parts) == {"look-ups", "words", "vectors", "encoder"}


def test_a_half_of_another_corpus_is_refused(tmp_path: Path, corpus: Corpus) -> None:
    build(tmp_path, corpus)
    side = tmp_path / "i" / "dense" / "index.json"
    side.write_text(json.dumps({**json.loads(side.read_text()), "documents": 59}))
    with pytest.raises(IndexFolderError, match=r"holds 59 documents, its corpus .* 60"):
        open_index(tmp_path / "i", encoder=HashEncoder())


def test_an_edited_sidecar(tmp_path: Path, corpus: Corpus) -> None:
    build(tmp_path, corpus)
    side = json.loads((tmp_path / "i" / "index.json").read_text())
    for parameters, said in [
        ({"lexical": "bm52"}, "unknown lexical kind 'bm52'; did you mean 'bm25'"),
        ({"q": 1}, "q"),
    ]:
        (tmp_path / "i" / "index.json").write_text(json.dumps({**side, "parameters": parameters}))
        with pytest.raises(IndexFolderError, match=said):
            open_index(tmp_path / "i", encoder=HashEncoder())
