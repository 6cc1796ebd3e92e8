"""Lexical and dense rankings fused by reciprocal rank (Cormack, Clarke and Büttcher, SIGIR 2009)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mempo.errors import nearest
from mempo.retrieval.bm25 import Bm25Index
from mempo.retrieval.corpus import Corpus
from mempo.retrieval.dense import DenseIndex, Memory
from mempo.retrieval.errors import IndexFolderError
from mempo.retrieval.index_folder import Sidecar, opened, put, write_sidecar
from mempo.retrieval.ranked import RankedIndex, Ranking
from mempo.retrieval.tantivy import TantivyIndex

if TYPE_CHECKING:
    from mempo.retrieval.dense_build import Prepared
    from mempo.retrieval.encoder import Encoder

LEXICAL = {Bm25Index.KIND: Bm25Index, TantivyIndex.KIND: TantivyIndex}
LEXICAL_FOLDER, DENSE_FOLDER = "lexical", "dense"


@dataclass(frozen=True, slots=True)
class HybridSettings:
    """`k`: of 1 / (k + rank), 60 in the paper; `depth`: how far down each ranking is read, at least `top_k`."""

    lexical: Literal["bm25", "tantivy"] = "bm25"
    title_weight: int = 2
    k: int = 60
    depth: int = 100


def reciprocal_rank_fusion(rankings: Sequence[Ranking], k: int = 60) -> Ranking:
    """One ranking by the sum of 1 / (k + rank) over those that hold a place; ranks count from 1, scores not at all."""
    fused: dict[int, float] = {}
    for ranking in rankings:
        for rank, (place, _) in enumerate(ranking, start=1):
            fused[place] = fused.get(place, 0.0) + 1.0 / (k + rank)
    return sorted(fused.items(), key=lambda entry: (-entry[1], entry[0]))


class HybridIndex(RankedIndex):
    """A lexical and a dense index of one corpus, asked together."""

    KIND = "hybrid"

    def __init__(self, corpus: Corpus, lexical: RankedIndex, dense: DenseIndex, settings: HybridSettings) -> None:
        """Use `build` or `load`."""
        super().__init__(corpus)
        self.lexical = lexical
        self.dense = dense
        self.settings = settings

    @classmethod
    def build(
        cls,
        corpus: Corpus,
        out_dir: str | Path,
        encoder: Encoder,
        prepared: Prepared,
        settings: HybridSettings | None = None,
    ) -> HybridIndex:
        """Writes both indexes into `out_dir` and loads them; `prepared` comes from dense_build.py."""
        chosen = settings or HybridSettings()

        def write(folder: Path) -> None:
            (folder / LEXICAL_FOLDER).mkdir()
            LEXICAL[chosen.lexical].write(corpus, folder / LEXICAL_FOLDER, chosen.title_weight)
            (folder / DENSE_FOLDER).mkdir()
            prepared.write(corpus, folder / DENSE_FOLDER)
            write_sidecar(folder, Sidecar(cls.KIND, len(corpus), corpus.sha256, asdict(chosen)))

        return put(corpus, out_dir, write, lambda folder: cls.load(folder, encoder=encoder))

    @classmethod
    def load(
        cls,
        index_dir: str | Path,
        corpus: Corpus | None = None,
        encoder: Encoder | None = None,
        memory: Memory = "map",
    ) -> HybridIndex:
        """See DenseIndex.load."""
        folder, side, corpus = opened(index_dir, cls.KIND, corpus)
        try:
            settings = HybridSettings(**side.parameters)
        except TypeError as error:
            raise IndexFolderError(f"{folder}/index.json: {error}; build the index again") from None
        if settings.lexical not in LEXICAL:
            hint = nearest(str(settings.lexical), LEXICAL)
            raise IndexFolderError(f"{folder}/index.json: unknown lexical kind {settings.lexical!r}{hint}")
        lexical = LEXICAL[settings.lexical].load(folder / LEXICAL_FOLDER, corpus)
        dense = DenseIndex.load(folder / DENSE_FOLDER, corpus, encoder, memory)
        return cls(corpus, lexical, dense, settings)

    def rank(self, queries: Sequence[str], top_k: int) -> list[Ranking]:
        """See RankedIndex. Scores are sums of at most 2 / (k + 1)."""
        depth = max(top_k, self.settings.depth)
        both = zip(self.lexical.rank(queries, depth), self.dense.rank(queries, depth), strict=True)
        return [reciprocal_rank_fusion(rankings, self.settings.k)[:top_k] for rankings in both]
