"""The nouns of retrieval: a document, a hit, and anything that finds documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class Document:
    """One passage or page of a corpus.

    `id` is unique in its corpus; `title` may be empty; `url` is there when the corpus names one (several passages of
    one page may share it). All texts are valid Unicode: they always encode to UTF-8.
    """

    id: str
    title: str
    text: str
    url: str | None = None


@dataclass(frozen=True, slots=True)
class Hit:
    """A document found for a query. Scores compare within one query only; higher is better."""

    document: Document
    score: float


@runtime_checkable
class Retriever(Protocol):
    """Anything that finds documents: an index in this process, or a server behind HTTP. Safe to call from threads."""

    def retrieve(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
        """One list of hits per query, in the order of `queries`, best first, each of at most `top_k` hits.

        A query with nothing to look for (empty, white space, punctuation) gets an empty list.
        """
        ...

    def access(self, urls: Sequence[str]) -> list[Document | None]:
        """The document at each url, in the order of `urls`; None where the corpus has no such url."""
        ...
