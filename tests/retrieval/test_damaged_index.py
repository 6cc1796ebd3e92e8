"""Every file of an index of any kind × every kind of damage: one clear line that names it, or the same hits."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mempo.config.retrieval import DenseSettings
from mempo.errors import UserError
from mempo.retrieval.corpus import Corpus
from mempo.retrieval.dense_build import prepare
from mempo.retrieval.document import Document, Hit
from mempo.retrieval.hybrid import HybridIndex, HybridSettings
from mempo.retrieval.index import open_index
from mempo.retrieval.tantivy import TantivyIndex
from mempo.storage.outputs import RECORD
from tests.retrieval.encoders import HashEncoder, build_dense
from tests.storage.test_damage import DAMAGES, damage

DOCUMENTS = [Document(str(n), f"word{n}", f"letter{n % 9} number{n % 7}", f"http://w/{n}") for n in range(40)]
QUERIES = ["word7 letter3", "number2"]


def dense(corpus: Corpus, out: Path) -> None:
    build_dense(corpus, out, HashEncoder(), out.parent / "cache", DenseSettings(factory="IVF4,Flat"))


def hybrid(corpus: Corpus, out: Path) -> None:
    prepared = prepare(corpus, HashEncoder(), out.parent / "cache", DenseSettings())
    HybridIndex.build(corpus, out, HashEncoder(), prepared, HybridSettings(lexical="tantivy"))


BUILDERS: dict[str, Callable[[Corpus, Path], object]] = {
    "tantivy": TantivyIndex.build,
    "dense": dense,
    "hybrid": hybrid,
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("indexes")
    corpus = Corpus.from_documents(DOCUMENTS, folder / "corpus")
    for kind, build in BUILDERS.items():
        build(corpus, folder / kind)
    return folder


def hits(folder: Path) -> list[list[Hit]]:
    """What a search finds, all documents read and all addresses looked up."""
    index = open_index(folder, encoder=HashEncoder())
    index.access(["http://w/3"])
    return index.retrieve(QUERIES, 5)


def hits_or_refusal(folder: Path) -> tuple[list[list[Hit]] | None, str]:
    try:
        return hits(folder), ""
    except UserError as error:
        return None, str(error)


@pytest.mark.slow
@pytest.mark.parametrize("kind", BUILDERS)
def test_damage_is_one_line_or_does_not_matter(made: Path, kind: str) -> None:
    index, seen = made / kind, 0
    right = hits(index)
    for file in sorted(path for path in index.rglob("*") if path.is_file() and path.name != RECORD):
        content = file.read_bytes()
        for how in (*DAMAGES, "zeros"):
            if how == "zeros":  # of the same length
                file.write_bytes(bytes(len(content)))
            else:
                damage(file, how)
            found, said = hits_or_refusal(index)
            assert found in (right, None), f"{file}, {how}: other hits, and not a word"
            assert found or ("\n" not in said and str(index) in said), f"{file}, {how}: {said}"
            seen += bool(said)
            shutil.rmtree(file) if file.is_dir() and not file.is_symlink() else file.unlink()
            file.write_bytes(content)
    assert hits(index) == right
    assert seen > 60
