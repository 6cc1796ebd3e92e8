"""What every index in this process shares: it ranks places in a corpus, and the corpus gives the documents."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypeAlias

from mempo.retrieval.corpus import Corpus
from mempo.retrieval.document import Document, Hit

Ranking: TypeAlias = "list[tuple[int, float]]"
"""Places in the corpus with their scores, best first; equal scores in the order of the corpus."""


class RankedIndex(ABC):
    """A Retriever over one corpus. Safe to use from threads: nothing changes after loading."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus

    @abstractmethod
    def rank(self, queries: Sequence[str], top_k: int) -> list[Ranking]:
        """One ranking per query, each of at most `top_k` (>= 1) places; no document is read."""

    def retrieve(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
        """See Retriever. ValueError when `top_k` < 1."""
        if top_k < 1:
            raise ValueError(f"top_k must be at least 1, not {top_k}")
        if not queries:
            return []
        return [[Hit(self.corpus[place], score) for place, score in ranking] for ranking in self.rank(queries, top_k)]

    def access(self, urls: Sequence[str]) -> list[Document | None]:
        """See Retriever."""
        return [self.corpus.by_url(url) for url in urls]
