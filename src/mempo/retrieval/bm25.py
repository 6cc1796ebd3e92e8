"""The lexical index: BM25 over words, titles weighted; needs no weights and no GPU."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import bm25s
import numpy as np

from mempo.retrieval import words
from mempo.retrieval.corpus import Corpus
from mempo.retrieval.document import Document
from mempo.retrieval.errors import CorpusError, IndexFolderError
from mempo.retrieval.index_folder import Sidecar, opened, put, write_sidecar
from mempo.retrieval.ranked import RankedIndex, Ranking
from mempo.storage.read_files import DamagedFile, reading

logging.getLogger("bm25s").setLevel(logging.WARNING)  # it sets itself to DEBUG when imported

_FOLDER = "bm25"


K1, B = 1.5, 0.75
METHOD = "lucene"


class Bm25Index(RankedIndex):
    """BM25 over the words of title and text.

    Equal scores are ordered by the documents' place in the corpus, so results do not depend on the machine.
    """

    KIND = "bm25"

    def __init__(self, corpus: Corpus, scorer: bm25s.BM25) -> None:
        """Use `build` or `load`."""
        super().__init__(corpus)
        self._vocabulary: dict[str, int] = scorer.vocab_dict
        # One sparse column per word: what the word adds to each document that has it. Plain views of the mapped files:
        # slicing a memmap costs more than the addition that follows.
        self._added, self._documents, self._columns = (
            np.asarray(scorer.scores[name]).view(np.ndarray) for name in ("data", "indices", "indptr")
        )

    @classmethod
    def build(cls, corpus: Corpus, out_dir: str | Path, title_weight: int = 2) -> Bm25Index:
        """Indexes the corpus into `out_dir`, which is replaced when the index is whole, and loads it. `title_weight`:
        how many times the words of the title count, >= 0.

        Raises CorpusError when no document has a word, IndexFolderError when `out_dir` is something else than an
        index or an empty folder.
        """
        return put(corpus, out_dir, lambda folder: cls.write(corpus, folder, title_weight), cls.load)

    @classmethod
    def write(cls, corpus: Corpus, folder: Path, title_weight: int = 2) -> None:
        """Writes the index and its sidecar into a folder that is there, without the corpus. Raises CorpusError."""
        vocabulary: dict[str, int] = {}
        # Numbered as they come, not from a set: the same corpus gives the same files.
        ids = [[vocabulary.setdefault(word, len(vocabulary)) for word in _words(d, title_weight)] for d in corpus]
        if not vocabulary:
            raise CorpusError(f"corpus {corpus.text_path}: none of its {len(corpus)} documents has a word to index")
        scorer = bm25s.BM25(k1=K1, b=B, method=METHOD, backend="numpy", csc_backend="numpy")
        scorer.index((ids, vocabulary), create_empty_token=False, show_progress=False)
        scorer.save(folder / _FOLDER, show_progress=False)
        parameters = {"k1": K1, "b": B, "title_weight": title_weight, "method": METHOD}
        parameters |= {"tokeniser": words.NAME, "vocabulary": len(vocabulary)}
        write_sidecar(folder, Sidecar(cls.KIND, len(corpus), corpus.sha256, parameters))

    @classmethod
    def load(cls, index_dir: str | Path, corpus: Corpus | None = None) -> Bm25Index:
        """The index in a folder that `build` wrote, memory-mapped; `corpus` when its text is elsewhere now.

        Raises IndexFolderError when the folder is incomplete, of another kind, or of another corpus or tokeniser.
        """
        folder, side, corpus = opened(index_dir, cls.KIND, corpus)
        try:
            with reading(folder / _FOLDER, "build the index again with --force"):
                scorer = bm25s.BM25.load(folder / _FOLDER, mmap=True, show_progress=False)
                _check(scorer, side)
        except DamagedFile as error:
            raise IndexFolderError(f"index {folder} is incomplete or damaged: {error}") from error
        indexed = scorer.scores["num_docs"]
        if indexed != side.documents:
            raise IndexFolderError(
                f"index {folder}: its arrays hold {indexed} documents, {side.documents} are named; build it again"
            )
        return cls(corpus, scorer)

    def rank(self, queries: Sequence[str], top_k: int) -> list[Ranking]:
        """See RankedIndex. Only documents that share a word with the query are ranked."""
        return [self._rank(query, top_k) for query in queries]

    def _rank(self, query: str, top_k: int) -> Ranking:
        known = [self._vocabulary[word] for word in words.words(query) if word in self._vocabulary]
        scores = np.zeros(len(self.corpus), dtype=np.float32)
        # Sorted, counted once each: the sum does not depend on the order of words, nor 50 000 words on their number.
        for word, count in sorted(Counter(known).items()):
            column = slice(self._columns[word], self._columns[word + 1])
            scores[self._documents[column]] += self._added[column] * np.float32(count)
        found = np.flatnonzero(scores > 0)
        if len(found) > top_k:
            # All that tie with the last place stay in, so that the order below decides among them.
            least = np.partition(scores[found], len(found) - top_k)[len(found) - top_k]
            found = found[scores[found] >= least]
        best = found[np.argsort(-scores[found], kind="stable")][:top_k]
        return [(int(position), float(scores[position])) for position in best]


def _check(scorer: bm25s.BM25, side: Sidecar) -> None:
    """Raises ValueError: the vocabulary is not that of the index."""
    vocabulary, columns = scorer.vocab_dict, len(scorer.scores["indptr"]) - 1
    if not isinstance(vocabulary, dict) or len(vocabulary) != side.parameters.get("vocabulary", len(vocabulary)):
        raise ValueError("its vocabulary is another one")
    if not all(type(column) is int and 0 <= column < columns for column in vocabulary.values()):
        raise ValueError("its vocabulary names words that have no column")


def _words(document: Document, title_weight: int) -> list[str]:
    return words.words(document.title) * title_weight + words.words(document.text)
