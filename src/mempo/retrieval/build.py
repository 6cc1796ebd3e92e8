"""From a corpus file to an index folder of any kind: what `mempo index build` does."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from mempo.config.retrieval import BuildSettings
from mempo.retrieval.bm25 import Bm25Index
from mempo.retrieval.corpus import Corpus
from mempo.retrieval.corpus_files import SIDECAR_NAME
from mempo.retrieval.corpus_tables import is_unpacked
from mempo.retrieval.encoder_folder import encoder_folder, resolved_encoder
from mempo.retrieval.index_folder import refuse_other_index, refuse_out_dir
from mempo.retrieval.ranked import RankedIndex
from mempo.retrieval.tantivy import TantivyIndex
from mempo.storage.atomic import remove_atomic

Report = Callable[[str, int, int], None]


def build_index(
    corpus: Path,
    out_dir: Path,
    settings: BuildSettings,
    report: Report = lambda stage, done, total: None,
    force: bool = False,
) -> RankedIndex:
    """Builds the index, replaces `out_dir` with it, and opens it.

    What can be refused is refused before the corpus is read. A compressed corpus is unpacked beside `out_dir`; a build
    that was killed leaves it there, and the next one goes on with it. `report` is told a stage and how far it is.
    `force`: replace an index of another kind, corpus or settings; build although the memory does not suffice, or
    although a ready-made file does not agree with the encoder.

    Raises UserError, of which CorpusError and IndexFolderError are kinds.
    """
    refuse_out_dir(out_dir)
    if not force:
        refuse_other_index(out_dir, settings, None)
    with_vectors = settings.kind in ("dense", "hybrid")
    if with_vectors and settings.encoder is not None:
        resolved_encoder(settings.encoder, encoder_folder(settings.encoder.path))
    unpacked = out_dir.parent / f".{out_dir.name}.corpus"
    report("read corpus", 0, 1)
    opened = _open(corpus, unpacked)
    report("read corpus", 1, 1)
    if not force:
        refuse_other_index(out_dir, settings, opened)
    built = _with_vectors(opened, out_dir, settings, report, force) if with_vectors else None
    if built is None:
        report("index words", 0, 1)
        lexical = TantivyIndex if settings.kind == "tantivy" else Bm25Index
        built = lexical.build(opened, out_dir, settings.title_weight)
        report("index words", 1, 1)
    if unpacked.is_dir():
        remove_atomic(unpacked)
    return built


def _open(corpus: Path, unpacked: Path) -> Corpus:
    try:
        lies_ready = is_unpacked(corpus)
    except OSError:  # said better by Corpus.open
        lies_ready = True
    if lies_ready:
        return Corpus.open(corpus)
    try:
        opened = Corpus.open(corpus, unpacked)
    finally:
        if unpacked.is_dir() and not (unpacked / SIDECAR_NAME).is_file():
            shutil.rmtree(unpacked)
    opened.text_stays = False
    return opened


def _with_vectors(corpus: Corpus, out_dir: Path, settings: BuildSettings, report: Report, force: bool) -> RankedIndex:
    # Torch and FAISS, which a lexical index does without.
    from mempo.retrieval.dense_build import prepare, prepare_file, refuse_inside
    from mempo.retrieval.embeddings import default_cache, forget_embeddings
    from mempo.retrieval.encoder import TransformersEncoder
    from mempo.retrieval.hybrid import HybridIndex, HybridSettings

    assert settings.encoder is not None
    dense, cache = settings.dense, settings.cache or default_cache()
    encoder = TransformersEncoder(settings.encoder)
    if settings.faiss_file is not None:
        refuse_inside(settings.faiss_file, out_dir)
        prepared = prepare_file(corpus, encoder, settings.faiss_file, dense, force)
    else:
        prepared = prepare(corpus, encoder, cache, dense, report, force)
    if settings.kind == "dense":
        built: RankedIndex = prepared.put(corpus, out_dir, encoder)
    else:
        report("index words", 0, 1)
        halves = HybridSettings(lexical=settings.lexical, title_weight=settings.title_weight)
        built = HybridIndex.build(corpus, out_dir, encoder, prepared, halves)
        report("index words", 1, 1)
    if not settings.keep_embeddings and settings.faiss_file is None:
        forget_embeddings(corpus, encoder, cache, dense.stored_as)
    return built
