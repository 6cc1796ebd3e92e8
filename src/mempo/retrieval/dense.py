"""The dense index: the nearest vectors of an encoder, found by FAISS. Building one is dense_build.py."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from mempo.config.retrieval import EncoderSettings
from mempo.errors import UserError
from mempo.retrieval import faiss as faiss_index
from mempo.retrieval import words
from mempo.retrieval.corpus import Corpus
from mempo.retrieval.errors import IndexFolderError
from mempo.retrieval.faiss_ready import check_file
from mempo.retrieval.index_folder import Sidecar, opened
from mempo.retrieval.ranked import RankedIndex, Ranking

if TYPE_CHECKING:
    from mempo.retrieval.encoder import Encoder

Memory = Literal["map", "load"]


class DenseIndex(RankedIndex):
    """Nearest vectors. Scores are inner products, or squared distances with a minus sign: larger is better."""

    KIND = "dense"

    def __init__(self, corpus: Corpus, index: Any, encoder: Encoder) -> None:
        """Use `load`."""
        super().__init__(corpus)
        self.encoder = encoder
        self._index = index
        self._sign = -1.0 if faiss_index.metric_of(index) == "l2" else 1.0

    @classmethod
    def load(
        cls,
        index_dir: str | Path,
        corpus: Corpus | None = None,
        encoder: Encoder | None = None,
        memory: Memory = "map",
    ) -> DenseIndex:
        """The index in a folder; `corpus` when its text is elsewhere now, `encoder` when its weights are.

        All that can be checked without weights is checked before they load. Raises IndexFolderError: incomplete, of
        another kind, corpus, length or encoder; UserError when the encoder cannot be loaded.
        """
        folder, side, corpus = opened(index_dir, cls.KIND, corpus)
        file = faiss_file(folder, side)
        index = faiss_index.read(file, memory)
        check_file(index, file, dimension=side.parameters.get("dimension"), documents=len(corpus))
        faiss_index.apply_settings(index, side.parameters.get("search", {}), folder)
        encoder = encoder or _load_encoder(folder, side)
        _refuse_other_encoder(folder, side, encoder)
        return cls(corpus, index, encoder)

    def rank(self, queries: Sequence[str], top_k: int) -> list[Ranking]:
        """See RankedIndex. Every document has a score, so only an empty query, or an approximate index, finds fewer."""
        asked = [i for i, query in enumerate(queries) if words.words(query)]
        rankings: list[Ranking] = [[] for _ in queries]
        if not asked:
            return rankings
        vectors = np.ascontiguousarray(self.encoder.queries([queries[i] for i in asked]), dtype=np.float32)
        scores, places = self._index.search(vectors, min(top_k, len(self.corpus)))
        for i, row_scores, row_places in zip(asked, scores * self._sign, places, strict=True):
            # -1 stands where an approximate search found too few.
            found = [(int(p), float(s)) for p, s in zip(row_places, row_scores, strict=True) if p >= 0]
            if found and max(found)[0] >= len(self.corpus):
                raise IndexFolderError(
                    f"the FAISS index returned document {max(found)[0]} of a corpus of {len(self.corpus)}; "
                    "it was made from another corpus"
                )
            rankings[i] = sorted(found, key=lambda entry: (-entry[1], entry[0]))
        return rankings


def faiss_file(folder: Path, side: Sidecar) -> Path:
    """The FAISS file of an index folder. Raises IndexFolderError: gone, or not the one it was made with."""
    named = side.parameters.get("file")
    if not isinstance(named, dict) or not isinstance(named.get("path"), str):
        raise IndexFolderError(f"{folder}/index.json names no FAISS file; build the index again")
    candidates = [folder / named["path"], *([Path(named["absolute"])] if named.get("absolute") else [])]
    existing = [path for path in candidates if path.is_file()]
    if not existing:
        raise IndexFolderError(
            f"the FAISS file of index {folder} is gone: neither {' nor '.join(map(str, candidates))}"
        )
    found = existing[0].stat().st_size
    if found != named.get("bytes"):
        raise IndexFolderError(
            f"{existing[0]} has {found} bytes, {named.get('bytes')} when index {folder} was made; build it again"
        )
    return existing[0]


def encoder_settings_of(folder: Path, side: Sidecar) -> EncoderSettings:
    """What the sidecar says of the encoder. Raises IndexFolderError when it is none that can be loaded from there."""
    said = side.parameters.get("encoder")
    try:
        if isinstance(said, dict) and isinstance(said.get("path"), str):
            return EncoderSettings(**said)
    except ValueError as error:
        raise IndexFolderError(f"{folder}/index.json: encoder: {error}") from None
    raise IndexFolderError(f"index {folder} was made by an encoder that has no files; pass it to open_index")


def _load_encoder(folder: Path, side: Sidecar) -> Encoder:
    from mempo.retrieval.encoder import TransformersEncoder

    try:
        return TransformersEncoder(encoder_settings_of(folder, side))
    except IndexFolderError:
        raise
    except UserError as error:
        raise UserError(f"index {folder}: {error} (its place is encoder.path in {folder}/index.json)") from error


def _refuse_other_encoder(folder: Path, side: Sidecar, encoder: Encoder) -> None:
    wanted, found = side.parameters.get("identity"), dict(encoder.identity)
    if wanted == found:
        return
    wanted = wanted if isinstance(wanted, dict) else {}
    differing = [key for key in sorted({*wanted, *found}) if wanted.get(key) != found.get(key)]
    shown = "; ".join(f"{key} {wanted.get(key)!r} in the index, {found.get(key)!r} in the encoder" for key in differing)
    raise IndexFolderError(f"index {folder} was made with another encoder ({shown}); use that one or build it again")
