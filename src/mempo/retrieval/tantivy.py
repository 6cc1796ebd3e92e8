"""The lexical index for larger corpora: the same words as bm25.py, kept by tantivy on disk and searched from there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mempo.errors import UserError
from mempo.retrieval import words
from mempo.retrieval.corpus import Corpus
from mempo.retrieval.errors import CorpusError, IndexFolderError
from mempo.retrieval.index_folder import Sidecar, opened, put, write_sidecar
from mempo.retrieval.ranked import RankedIndex, Ranking

_FOLDER = "tantivy"
_ANALYZER = "ready_words"
_HEAP_BYTES = 256_000_000
_SHOWN_CHARS = 300


class TantivyIndex(RankedIndex):
    """BM25 (k1 1.2, b 0.75, tantivy's own) of title and text as two fields, added up.

    Words are cut by words.py before tantivy sees them, and queries are built from terms, never parsed: what a query
    holds can be no operator.
    """

    KIND = "tantivy"

    def __init__(self, corpus: Corpus, folder: Path, index: Any, title_weight: float) -> None:
        """Use `build` or `load`."""
        super().__init__(corpus)
        self._folder = folder
        self._tantivy = _tantivy()
        self._searcher = index.searcher()
        self._schema = index.schema
        self._title_weight = title_weight

    @classmethod
    def build(cls, corpus: Corpus, out_dir: str | Path, title_weight: float = 2.0) -> TantivyIndex:
        """As Bm25Index.build; UserError when the package is not installed."""
        return put(corpus, out_dir, lambda folder: cls.write(corpus, folder, title_weight), cls.load)

    @classmethod
    def write(cls, corpus: Corpus, folder: Path, title_weight: float = 2.0) -> None:
        """As Bm25Index.write."""
        tantivy = _tantivy()
        (folder / _FOLDER).mkdir()
        index = tantivy.Index(_schema(tantivy), path=str(folder / _FOLDER))
        _register(tantivy, index)
        # One thread: documents then lie in the order of the corpus.
        writer = index.writer(heap_size=_HEAP_BYTES, num_threads=1)
        any_word = False
        for place, document in enumerate(corpus):
            title, text = words.words(document.title), words.words(document.text)
            any_word = any_word or bool(text) or bool(title)
            writer.add_document(tantivy.Document(place=place, title=" ".join(title), text=" ".join(text)))
        if not any_word:
            raise CorpusError(f"corpus {corpus.text_path}: none of its {len(corpus)} documents has a word to index")
        writer.commit()
        writer.wait_merging_threads()
        parameters: dict[str, Any] = {
            "title_weight": title_weight,
            "tokeniser": words.NAME,
            "tantivy": tantivy.__version__,
        }
        parameters["files"] = _sizes(folder / _FOLDER)
        write_sidecar(folder, Sidecar(cls.KIND, len(corpus), corpus.sha256, parameters))

    @classmethod
    def load(cls, index_dir: str | Path, corpus: Corpus | None = None) -> TantivyIndex:
        """As Bm25Index.load; UserError when the package is not installed."""
        folder, side, corpus = opened(index_dir, cls.KIND, corpus)
        tantivy = _tantivy()
        with _readable(folder):
            _refuse_other_sizes(folder / _FOLDER, side.parameters.get("files", {}))
            index = tantivy.Index.open(str(folder / _FOLDER))
            _register(tantivy, index)
            found = cls(corpus, folder, index, float(side.parameters["title_weight"]))
            indexed = found._searcher.num_docs
        if indexed != side.documents:
            raise IndexFolderError(
                f"index {folder}: its files hold {indexed} documents, {side.documents} are named; build it again"
            )
        return found

    def rank(self, queries: Sequence[str], top_k: int) -> list[Ranking]:
        """See RankedIndex. Only documents that share a word with the query are ranked."""
        return [self._rank(query, top_k) for query in queries]

    def _rank(self, query: str, top_k: int) -> Ranking:
        counts = Counter(words.words(query))
        if not counts:
            return []
        weights = {"title": self._title_weight, "text": 1.0}
        clauses = [
            (self._tantivy.Occur.Should, self._term(field, word, weight * count))
            for word, count in sorted(counts.items())
            for field, weight in weights.items()
            if weight > 0
        ]
        query_of_terms = self._tantivy.Query.boolean_query(clauses)
        with _readable(self._folder):
            found = self._searcher.search(query_of_terms, limit=min(top_k, len(self.corpus)), count=False).hits
            places = self._searcher.fast_field_values("place", [address for _, address in found])
        ranking = [(int(place), float(score)) for place, (score, _) in zip(places, found, strict=True)]
        return sorted(ranking, key=lambda entry: (-entry[1], entry[0]))

    def _term(self, field: str, word: str, weight: float) -> Any:
        term = self._tantivy.Query.term_query(self._schema, field, word, "freq")
        return self._tantivy.Query.boost_query(term, weight)


def _tantivy() -> Any:
    try:
        import tantivy
    except ImportError:
        raise UserError(
            "an index of kind 'tantivy' needs the package tantivy: pip install 'mempo[tantivy]'; or take kind 'bm25'"
        ) from None
    return tantivy


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
    """Raises IndexFolderError for whatever tantivy makes of files that are not as it wrote them."""
    try:
        yield
    except IndexFolderError:
        raise
    except BaseException as error:
        # A panic in tantivy's Rust is no Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        said = " ".join(str(error).split())[:_SHOWN_CHARS]
        raise IndexFolderError(f"index {folder} is incomplete or damaged ({said}); build it again") from error


def _sizes(folder: Path) -> dict[str, int]:
    """Bytes by name, without the locks."""
    return {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.suffix != ".lock"}


def _refuse_other_sizes(folder: Path, wanted: Any) -> None:
    """What tantivy maps into memory it does not look at before it is too late. Raises ValueError."""
    found = _sizes(folder)
    for name, size in wanted.items():
        if found.get(name) != size:
            there = f"has {found[name]} bytes" if name in found else "is gone"
            raise ValueError(f"{folder.name}/{name} {there}, it had {size}")


def _schema(tantivy: Any) -> Any:
    builder = tantivy.SchemaBuilder()
    builder.add_integer_field("place", fast=True)
    for field in ("title", "text"):
        builder.add_text_field(field, tokenizer_name=_ANALYZER, index_option="freq")
    return builder.build()


def _register(tantivy: Any, index: Any) -> None:
    analyzer = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.whitespace()).build()
    index.register_tokenizer(_ANALYZER, analyzer)
