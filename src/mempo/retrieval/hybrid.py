"""Lexical and dense rankings fused by reciprocal rank (Cormack, Clarke and Büttcher, SIGIR 2009)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mempo.errors import nearest
from mempo.retrieval.bm25 import Bm25Index, Bm25Settings
from mempo.retrieval.corpus import Corpus
from mempo.retrieval.dense import DenseIndex, Memory
from mempo.retrieval.errors import IndexFolderError
from mempo.retrieval.index_folder import Sidecar, new_index_folder, read_sidecar, write_sidecar
from mempo.retrieval.ranked import RankedIndex, Ranking
from mempo.retrieval.tantivy import TantivyIndex, TantivySettings
from mempo.storage.atomic import one_writer

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
        settings = settings or HybridSettings()
        out_dir = Path(out_dir)
        with one_writer(out_dir):
            with new_index_folder(out_dir, corpus) as folder:
                (folder / LEXICAL_FOLDER).mkdir()
                _write_lexical(corpus, folder / LEXICAL_FOLDER, settings)
                (folder / DENSE_FOLDER).mkdir()
                prepared.write(corpus, folder / DENSE_FOLDER)
                write_sidecar(folder, Sidecar(cls.KIND, len(corpus), corpus.sha256, asdict(settings)))
            return cls.load(out_dir, encoder=encoder)

    @classmethod
    def load(
        cls,
        index_dir: str | Path,
        corpus: Corpus | None = None,
        encoder: Encoder | None = None,
        memory: Memory = "map",
    ) -> HybridIndex:
        """See DenseIndex.load."""
        folder = Path(index_dir)
        side = read_sidecar(folder)
        side.refuse_unless(folder, kind=cls.KIND)
        corpus = Corpus.load(folder) if corpus is None else corpus
        side.refuse_unless(folder, corpus=corpus)
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


def _write_lexical(corpus: Corpus, folder: Path, settings: HybridSettings) -> None:
    if settings.lexical == "tantivy":
        TantivyIndex.write(corpus, folder, TantivySettings(title_weight=settings.title_weight))
    else:
        Bm25Index.write(corpus, folder, Bm25Settings(title_weight=settings.title_weight))
