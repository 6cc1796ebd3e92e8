"""Making a dense index: encode, train, add, write; or take a FAISS file that somebody made."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mempo.config.retrieval import DenseSettings, EncoderSettings
from mempo.errors import UserError
from mempo.retrieval import faiss as faiss_index
from mempo.retrieval.corpus import Corpus
from mempo.retrieval.dense import DenseIndex
from mempo.retrieval.embeddings import embed_corpus
from mempo.retrieval.encoder_folder import encoder_folder, weights_bytes
from mempo.retrieval.faiss_ready import check_file, refuse_unless_fits
from mempo.retrieval.index_folder import Sidecar, put, write_sidecar
from mempo.retrieval.memory_need import MemoryNeed, free_bytes

if TYPE_CHECKING:
    from mempo.retrieval.encoder import Encoder

log = logging.getLogger(__name__)

FILE = "vectors.faiss"
Report = Callable[[str, int, int], None]
"""Told a stage (`encode`, `train`, `add`) and how far it is: done, of all."""


@dataclass(frozen=True)
class Prepared:
    """A dense index about to be written: a FAISS index in memory, or a file that stays where it is."""

    index: Any | None
    file: Path | None
    dimension: int
    parameters: Mapping[str, Any]

    def put(self, corpus: Corpus, out_dir: Path, encoder: Encoder) -> DenseIndex:
        """Writes the index into `out_dir` and loads it."""
        return put(
            corpus,
            out_dir,
            lambda folder: self.write(corpus, folder),
            lambda folder: DenseIndex.load(folder, encoder=encoder),
        )

    def write(self, corpus: Corpus, folder: Path) -> None:
        """The index and its sidecar into a folder that is there, without the corpus."""
        if self.index is not None:
            faiss_index.write(self.index, folder / FILE)
        place = folder / FILE if self.file is None else self.file
        file = {
            # Of a file elsewhere both ways, as for the corpus: a tree moved as a whole still finds it.
            "path": FILE if self.file is None else os.path.relpath(place.resolve(), folder.resolve()),
            "absolute": "" if self.file is None else str(place.absolute()),
            "bytes": place.stat().st_size,
        }
        parameters = {"dimension": self.dimension, **self.parameters, "file": file}
        write_sidecar(folder, Sidecar(DenseIndex.KIND, len(corpus), corpus.sha256, parameters))


def prepare(
    corpus: Corpus,
    encoder: Encoder,
    cache: Path,
    settings: DenseSettings,
    report: Report = lambda stage, done, total: None,
    force: bool = False,
) -> Prepared:
    """Encodes what `cache` does not hold yet, and indexes it; nothing is written but the vectors in the cache.

    Raises UserError: a factory that makes no index, too few vectors to train on, too little disk, or more memory than
    is free unless `force`.
    """
    index = faiss_index.make(settings.factory, encoder.dimension, settings.metric)  # first: it may be refused
    rows = faiss_index.sample_rows(index, len(corpus), settings.train_sample)
    search = faiss_index.search_settings(index, settings.nprobe, settings.ef_search)
    if not force:
        need = build_need(len(corpus), encoder.dimension, settings.factory, rows)
        need.refuse_unless_fits("take a smaller factory (SQ8, IVF4096,PQ96), or --force")
    vectors = embed_corpus(corpus, encoder, cache, settings.stored_as, lambda *done: report("encode", *done))
    report("train", 0, rows)
    remark = faiss_index.train(index, vectors, rows, settings.seed)
    report("train", rows, rows)
    if remark:
        log.warning("%s: %s", settings.factory, remark)
    faiss_index.add(index, vectors, lambda *done: report("add", *done))
    parameters = {
        "factory": settings.factory,
        "metric": settings.metric,
        "trained_on": rows,
        "seed": settings.seed,
        "stored_as": settings.stored_as,
        "search": search,
        **_encoder_parameters(encoder),
    }
    return Prepared(index, None, encoder.dimension, parameters)


def prepare_file(
    corpus: Corpus, encoder: Encoder, file: Path, settings: DenseSettings, force: bool = False
) -> Prepared:
    """A ready-made FAISS file of this corpus, which stays where it is; nothing is written.

    Raises IndexFolderError when its dimension is not the encoder's, its length not the corpus's, its metric not known
    here, or when its vectors are not those that the encoder makes of the passages (unless `force`).
    """
    index = faiss_index.read(file)
    check_file(index, file, dimension=encoder.dimension, documents=len(corpus))
    agreement = refuse_unless_fits(index, file, corpus, encoder, force)
    parameters = {
        "factory": None,
        "type": type(index).__name__,
        "metric": faiss_index.metric_of(index),
        "agreement": agreement,
        "search": faiss_index.search_settings(index, settings.nprobe, settings.ef_search),
        **_encoder_parameters(encoder),
    }
    return Prepared(None, file, encoder.dimension, parameters)


def refuse_inside(file: Path, out_dir: Path) -> None:
    """Raises UserError: the folder is replaced as a whole, and the file in it would be gone."""
    if out_dir.resolve() in file.resolve().parents:
        raise UserError(f"{file} lies in {out_dir}, which is about to be replaced; move it or name another folder")


def build_need(documents: int, dimension: int, factory: str, sample_rows: int) -> MemoryNeed:
    """Memory that building takes: the index whole, and the training sample."""
    index = faiss_index.size_of(factory, dimension).of(documents)
    parts = {"index": index, "training sample": sample_rows * dimension * 4}
    return MemoryNeed(f"building {factory} of {documents} x {dimension}", parts, free_bytes())


def _encoder_parameters(encoder: Encoder) -> dict[str, Any]:
    settings = getattr(encoder, "settings", None)
    found: dict[str, Any] = {"identity": dict(encoder.identity)}
    if isinstance(settings, EncoderSettings):
        path = settings.path
        said = settings.model_copy(update={"path": str(Path(path).absolute()) if Path(path).is_dir() else path})
        found["encoder"] = said.model_dump()
        found["weights_bytes"] = weights_bytes(encoder_folder(path))
    return found
