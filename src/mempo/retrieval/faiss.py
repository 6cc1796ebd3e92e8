"""FAISS as the dense index uses it: a factory string, a training sample, search settings, a file that can be mapped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import faiss
import numpy as np

from mempo.config.retrieval import Metric
from mempo.errors import UserError
from mempo.retrieval.errors import IndexFolderError

METRICS: dict[Metric, int] = {"inner_product": faiss.METRIC_INNER_PRODUCT, "l2": faiss.METRIC_L2}

_BLOCK_ROWS = 65_536
_LEAST_SAMPLE = 65_536
_SAMPLE_PER_CENTROID = 64
_ADVISED_PER_CENTROID = 39  # below it FAISS itself warns
_WITH_CODEBOOKS = (faiss.IndexPQ, faiss.IndexIVFPQ, faiss.IndexPQFastScan, faiss.IndexIVFPQFastScan)
EF_SEARCH = 64
NPROBE_BETWEEN = (8, 128)


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes of an index: `a_vector` for each vector, `fixed` whatever their number."""

    a_vector: float
    fixed: int

    def of(self, vectors: int) -> int:
        return round(self.a_vector * vectors) + self.fixed


def make(factory: str, dimension: int, metric: Metric) -> Any:
    """An empty index. Raises UserError with FAISS's reason when it cannot be made."""
    try:
        index = faiss.index_factory(dimension, factory, METRICS[metric])
    except RuntimeError as error:
        raise UserError(
            f"factory {factory!r} makes no index of {dimension} dimensions ({reason(error)}); "
            "for example Flat, SQ8, HNSW32, IVF1024,Flat or IVF4096,PQ96 (PQ must divide the dimension)"
        ) from None
    if any(isinstance(part, faiss.IndexIDMap | faiss.IndexIDMap2) for part in parts(index)):
        raise UserError(f"factory {factory!r} keeps ids of its own; documents are numbered by their place: drop IDMap")
    return index


def size_of(factory: str, dimension: int, metric: Metric = "inner_product") -> Size:
    """By arithmetic on an empty index: codes, ids, links, centroids and codebooks; the tests compare it with files."""
    index = make(factory, dimension, metric)  # kept: its parts do not keep it alive
    a_vector, fixed = 0.0, 0
    for part in parts(index):
        if isinstance(part, faiss.IndexIVF):
            a_vector += part.code_size + 8  # the id
        elif isinstance(part, faiss.IndexHNSW):
            a_vector += _links_bytes(part.hnsw) + 12  # where they begin, the level
        elif hasattr(part, "code_size"):
            a_vector += part.code_size
        if isinstance(part, faiss.IndexIVF):
            fixed += part.nlist * part.d * 4
        if isinstance(part, _WITH_CODEBOOKS):
            fixed += part.d * part.pq.ksub * 4
        if isinstance(part, faiss.IndexPreTransform):
            steps: Any = part.chain
            chain = [faiss.downcast_VectorTransform(steps.at(i)) for i in range(steps.size())]
            fixed += sum(step.d_in * step.d_out * 4 for step in chain)
    return Size(a_vector, fixed)


def least_vectors(index: Any) -> int:
    """How many vectors k-means needs at the least: the number of lists, or of centroids of a product quantizer."""
    return max(_centroids(index), default=1)


def sample_rows(index: Any, vectors: int, asked: int | None) -> int:
    """How many vectors to train on. Raises UserError, with the numbers, when there are too few."""
    if index.is_trained:
        return 0
    least = least_vectors(index)
    rows = min(vectors, asked or max(_LEAST_SAMPLE, _SAMPLE_PER_CENTROID * least))
    if rows < least:
        raise UserError(
            f"training needs at least {least} vectors ({least} centroids), and there are {rows}"
            + (f" of {vectors} in the sample; raise --train-sample" if rows < vectors else "; take Flat or SQ8")
        )
    return rows


def train(index: Any, vectors: np.ndarray[Any, Any], rows: int, seed: int) -> str | None:
    """Trains on `rows` of the vectors drawn at random; a remark when they are fewer than FAISS advises."""
    if rows == 0:
        return None
    drawn = np.random.default_rng(seed).choice(len(vectors), rows, replace=False)
    sample = np.ascontiguousarray(vectors[np.sort(drawn)], dtype=np.float32)
    for part in parts(index):
        if isinstance(part, faiss.IndexPQ | faiss.IndexIVFPQ):
            quantizer: Any = part
            quantizer.do_polysemous_training = (
                False  # seconds for each subquantizer, for a search that is not used here
            )
        for settings in (getattr(part, "cp", None), getattr(getattr(part, "pq", None), "cp", None)):
            if settings is not None:
                settings.min_points_per_centroid = 1  # what it would print is in the remark
    try:
        index.train(sample)
    except RuntimeError as error:
        raise UserError(f"training on {rows} vectors failed ({reason(error)})") from None
    advised = least_vectors(index) * _ADVISED_PER_CENTROID
    if least_vectors(index) > 1 and rows < advised:
        return f"trained on {rows} vectors; FAISS advises {advised} for {least_vectors(index)} centroids"
    return None


def add(index: Any, vectors: np.ndarray[Any, Any], progress: Callable[[int, int], None]) -> None:
    """Adds all vectors in their order, a block at a time."""
    for start in range(0, len(vectors), _BLOCK_ROWS):
        block = np.ascontiguousarray(vectors[start : start + _BLOCK_ROWS], dtype=np.float32)
        try:
            index.add(block)
        except RuntimeError as error:
            raise UserError(f"vectors {start} to {start + len(block)} cannot be added ({reason(error)})") from None
        progress(start + len(block), len(vectors))


def search_settings(index: Any, nprobe: int | None, ef_search: int | None) -> dict[str, int]:
    """What a search of this index depends on: what was asked for, else defaults that favour recall over FAISS's own.

    Raises UserError when the index has no such setting.
    """
    every = list(parts(index))
    ivf = next((part for part in every if isinstance(part, faiss.IndexIVF)), None)
    hnsw = any(isinstance(part, faiss.IndexHNSW) for part in every if ivf is None)
    for name, value, there in (("nprobe", nprobe, ivf is not None), ("ef_search", ef_search, hnsw)):
        if value is not None and not there:
            raise UserError(f"{name} is {value}, but an index of type {type(every[0]).__name__} has no such setting")
    found: dict[str, int] = {}
    if ivf is not None:
        least, most = NPROBE_BETWEEN
        found["nprobe"] = min(ivf.nlist, nprobe or max(least, min(most, ivf.nlist // 16)))
    if hnsw:
        found["ef_search"] = ef_search or EF_SEARCH
    return found


def apply_settings(index: Any, settings: dict[str, int], folder: Path) -> None:
    """Sets what `search_settings` found and index.json keeps. Raises IndexFolderError for anything else."""
    names = {"nprobe": "nprobe", "ef_search": "efSearch"}
    for key, value in settings.items():
        if key not in names or type(value) is not int or value < 1:
            known = "nprobe and ef_search are whole numbers from 1"
            raise IndexFolderError(f"{folder}/index.json: search: {key} {value!r} cannot be used; {known}")
        try:
            faiss.ParameterSpace().set_index_parameter(index, names[key], value)
        except RuntimeError:
            kind = type(index).__name__
            raise IndexFolderError(f"{folder}/index.json: search: an index of type {kind} has no {key}") from None


def read(file: Path, memory: Literal["map", "load"] = "map") -> Any:
    """The index in a file: mapped, so that only what a search touches is read, or loaded.

    Raises IndexFolderError: no such file, or no index in it.
    """
    if not file.is_file():
        raise IndexFolderError(f"the FAISS file {file} does not exist")
    try:
        return faiss.read_index(str(file), faiss.IO_FLAG_MMAP_IFC if memory == "map" else 0)
    except (RuntimeError, MemoryError) as error:
        raise IndexFolderError(f"the FAISS file {file} cannot be read ({reason(error)})") from None


def write(index: Any, file: Path) -> None:
    """Through a file of Python's: FAISS's own does not notice when its end finds no room. Raises OSError."""
    with file.open("wb") as out:
        faiss.write_index(index, cast("Any", faiss).PyCallbackIOWriter(out.write))  # no stub knows it


def metric_of(index: Any) -> Metric | None:
    return next((name for name, number in METRICS.items() if number == index.metric_type), None)


def parts(index: Any) -> Iterator[Any]:
    """The index and all that lie in it, each as its own class: behind transforms, of a refinement, under a graph."""
    index = faiss.downcast_index(index)
    yield index
    if isinstance(index, faiss.IndexPreTransform | faiss.IndexIDMap | faiss.IndexIDMap2):
        yield from parts(index.index)
    elif isinstance(index, faiss.IndexRefine):
        yield from parts(index.base_index)
        yield from parts(index.refine_index)
    elif isinstance(index, faiss.IndexHNSW):
        yield from parts(index.storage)


def reason(error: BaseException) -> str:
    """FAISS's message without its place in the source."""
    text = " ".join(str(error).split())
    return text.rsplit("Error: ", 1)[-1].rsplit(".cpp:", 1)[-1].split(": ", 1)[-1] or type(error).__name__


def _centroids(index: Any) -> Iterator[int]:
    for part in parts(index):
        if isinstance(part, faiss.IndexIVF):
            yield part.nlist
        if isinstance(part, _WITH_CODEBOOKS):
            yield part.pq.ksub


def _links_bytes(hnsw: Any) -> float:
    shares = faiss.vector_to_array(hnsw.assign_probas)
    links = faiss.vector_to_array(hnsw.cum_nneighbor_per_level)
    return float(sum(share * links[level + 1] * 4 for level, share in enumerate(shares)))
