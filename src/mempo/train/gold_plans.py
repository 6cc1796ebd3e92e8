"""From gold documents to a search plan: which query brings each of them, and what to note of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from mempo.retrieval.document import Document, Retriever
from mempo.rollout.question import Question

_SENTENCE = re.compile(r"[^.!?\n]+[.!?]?")
_MOST_CHARS = 300


def planned(question: Question, retriever: Retriever, top_k: int) -> Question | None:
    """The question with a plan made of `meta["documents"]` `[objectives][documents]`, in their order.

    A document is searched for by its title when question or documents before it name it, else by the question, else by
    its title all the same. Noted is what leads on: the next document's title, at last the answer, or its first sentence
    where it names neither. None when no such query brings a document among the first `top_k` results.
    """
    queries, finds = [], []
    texts = question.text.split(";") if len(question.objectives) > 1 else [question.text]
    if len(texts) != len(question.objectives):
        texts = [question.text] * len(question.objectives)
    for text, aliases, names in zip(texts, question.objectives, question.meta["documents"], strict=True):
        found = [_document(name, retriever, top_k) for name in names]
        documents = [document for document in found if document is not None]
        if len(documents) < len(found):
            return None
        known, hops = text, []
        for document, following in zip(documents, [*documents[1:], None], strict=True):
            query = _query(document, text.strip(), known, retriever, top_k)
            if query is None:
                return None
            hops.append((query, _evidence(document, aliases if following is None else [following.title])))
            known += f"\n{document.text}"
        queries.append([query for query, _ in hops])
        finds.append([find for _, find in hops])
    plan = {"queries": queries, "finds": finds, "says": [aliases[0] for aliases in question.objectives]}
    return replace(question, meta={**question.meta, **plan})


def _document(name: str, retriever: Retriever, top_k: int) -> Document | None:
    corpus = getattr(retriever, "corpus", None)
    if corpus is not None and (document := corpus.by_id(name)) is not None:
        return document
    [hits] = retriever.retrieve([name], top_k)
    return next((hit.document for hit in hits if name in (hit.document.title, hit.document.id)), None)


def _query(document: Document, question: str, known: str, retriever: Retriever, top_k: int) -> str | None:
    title = document.title.strip()
    named = [title] if title and title.lower() in known.lower() else []
    candidates: list[str] = [*named, question, *([title] if title else [])]
    for query in candidates:
        [hits] = retriever.retrieve([query], top_k)
        if any(hit.document.id == document.id for hit in hits):
            return query
    return None


def _evidence(document: Document, wanted: Sequence[str]) -> str:
    """As the document writes it, so that it is found in what the search shows."""
    for text in wanted:
        if text and (match := re.search(re.escape(text), document.text, re.IGNORECASE)):
            return match[0]
    first = _SENTENCE.search(document.text)
    return (first[0] if first else document.title).strip()[:_MOST_CHARS]
