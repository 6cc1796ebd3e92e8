"""Whether a FAISS file fits a corpus and an encoder: by its numbers, and by encoding a few passages again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mempo.retrieval import faiss as faiss_index
from mempo.retrieval.corpus import Corpus
from mempo.retrieval.encoder_folder import passage_text
from mempo.retrieval.errors import IndexFolderError

if TYPE_CHECKING:
    from mempo.retrieval.encoder import Encoder

PROBES = 8
LEAST_AGREEMENT = 0.7


def check_file(index: Any, file: Path, *, dimension: object, documents: int) -> None:
    """Raises IndexFolderError: untrained, of another dimension or length, or of a metric that has no meaning here."""
    if index.d != dimension:
        raise IndexFolderError(f"{file} holds vectors of {index.d} dimensions, the encoder makes {dimension}")
    if index.ntotal != documents:
        raise IndexFolderError(
            f"{file} holds {index.ntotal} vectors, its corpus {documents} documents; give the corpus it was made from"
        )
    if not index.is_trained:
        raise IndexFolderError(f"{file} is not trained; build it again")
    if faiss_index.metric_of(index) is None:
        raise IndexFolderError(
            f"{file} has FAISS metric {index.metric_type}; known are 0 (inner product) and 1 (squared distance)"
        )


def refuse_unless_fits(index: Any, file: Path, corpus: Corpus, encoder: Encoder, force: bool) -> float | None:
    """Mean cosine between vectors of the file and the same passages encoded now; None when the file cannot give them.

    A wrong encoder, pooling, prefix or corpus order shows here, and nowhere else: searches would still return
    something. Raises IndexFolderError below 0.7 (product quantizers stay above), unless `force`.
    """
    places = np.unique(np.linspace(0, len(corpus) - 1, PROBES).astype(int))
    try:
        stored = np.stack([index.reconstruct(int(place)) for place in places])
    except RuntimeError:  # inverted lists would have to be read through
        return None
    titles = encoder.identity.get("titles", "plain")
    made = encoder.passages([passage_text(corpus[int(place)], titles) for place in places])
    lengths = np.linalg.norm(stored, axis=1) * np.linalg.norm(made, axis=1)
    agreement = float(np.mean((stored * made).sum(axis=1) / np.maximum(lengths, 1e-12)))
    if agreement < LEAST_AGREEMENT and not force:
        raise IndexFolderError(
            f"{file}: {len(places)} passages encoded again agree with its vectors to a mean cosine of {agreement:.2f}, "
            f"less than {LEAST_AGREEMENT}; check encoder, pooling, prefixes and the order of the corpus, or --force"
        )
    return round(agreement, 4)
