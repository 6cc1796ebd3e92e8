"""`mempo index`: build an index, and show what one is."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from mempo.errors import UserError
from mempo.stopping import stoppable

index_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Build an index of a corpus, or describe one."
)

_LINE_EVERY_S = 10.0
_FOR_VECTORS = ("encoder", "faiss_file", "pooling", "query_prefix", "passage_prefix", "max_tokens", "normalize")
_FOR_VECTORS += ("titles", "dtype", "batch", "device", "factory", "metric", "train_sample", "nprobe", "ef_search")
_FOR_VECTORS += ("stored_as", "cache", "keep_embeddings")
_OF_ENCODER = ("pooling", "query_prefix", "passage_prefix", "max_tokens", "normalize")
_OF_ENCODER += ("titles", "dtype", "batch", "device")
_OF_FACTORY = ("factory", "metric", "train_sample", "stored_as")
_DENSE = ("nprobe", "ef_search", *_OF_FACTORY)


@index_app.command("build")
def build(
    corpus: Annotated[Path, typer.Argument(help="A corpus file: jsonl, jsonl.gz or jsonl.zst.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", help="The folder to write.", show_default=False)],
    kind: Annotated[str, typer.Option(help="bm25, tantivy, dense or hybrid.")] = "bm25",
    encoder: Annotated[
        str | None, typer.Option(help="Vectors: an encoder's folder, its hub name, or minilm.", show_default=False)
    ] = None,
    factory: Annotated[
        str | None, typer.Option(help="FAISS factory: Flat, SQ8, HNSW32, IVF4096,PQ96, ... [default: Flat]")
    ] = None,
    faiss_file: Annotated[
        Path | None, typer.Option("--faiss", help="A ready-made FAISS file of this corpus, such as e5_Flat.index.")
    ] = None,
    lexical: Annotated[str | None, typer.Option(help="Hybrid: bm25 or tantivy. [default: bm25]")] = None,
    title_weight: Annotated[
        int | None, typer.Option(help="Words: how often one in the title counts. [default: 2]")
    ] = None,
    metric: Annotated[str | None, typer.Option(help="inner_product or l2. [default: inner_product]")] = None,
    pooling: Annotated[str | None, typer.Option(help="mean, cls or last. [default: the encoder's]")] = None,
    query_prefix: Annotated[str | None, typer.Option(help="[default: the encoder's]")] = None,
    passage_prefix: Annotated[str | None, typer.Option(help="[default: the encoder's]")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Longer passages are cut. [default: the encoder's]")] = None,
    normalize: Annotated[bool | None, typer.Option(help="Vectors of length 1. [default: the encoder's]")] = None,
    titles: Annotated[
        str | None, typer.Option(help="How a passage begins: plain, quoted or none. [default: plain]")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16. [default: float32]")] = None,
    batch: Annotated[int | None, typer.Option(help="Passages encoded at once. [default: 64]")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, ... [default: auto]")] = None,
    train_sample: Annotated[int | None, typer.Option(help="Vectors to train on. [default: 64 a centroid]")] = None,
    nprobe: Annotated[int | None, typer.Option(help="IVF: lists a search looks into. [default: 1/16, 8-128]")] = None,
    ef_search: Annotated[int | None, typer.Option(help="HNSW: width of a search. [default: 64]")] = None,
    stored_as: Annotated[
        str | None, typer.Option(help="Vectors in the cache: float32 or float16. [default: float32]")
    ] = None,
    cache: Annotated[
        Path | None, typer.Option(help="Where vectors are kept. [default: $MEMPO_CACHE or ~/.cache/mempo]")
    ] = None,
    keep_embeddings: Annotated[
        bool | None, typer.Option(help="Leave the vectors in the cache when done. [default: keep]")
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Replace another index; build although memory is short or a file disagrees."),
    ] = False,
) -> None:
    """Build an index of a corpus; a build that was killed goes on where it stopped (docs/retrieval.md)."""
    given = {name: value for name, value in locals().items() if value is not None}
    _refuse_idle(given)
    from mempo.retrieval.build_index import BuildSettings, build_index
    from mempo.retrieval.embeddings import default_cache

    try:
        of_encoder = {"path": encoder, **{key: given[key] for key in _OF_ENCODER if key in given}}
        keys = ("kind", "lexical", "title_weight", "faiss_file", "keep_embeddings", "force")
        settings = BuildSettings(
            encoder=None if encoder is None else of_encoder,  # type: ignore[arg-type]
            **{key: given[key] for key in keys if key in given},
        )
        dense = _dense_settings(given) if settings.kind in ("dense", "hybrid") else None
    except ValidationError as error:
        problem = error.errors()[0]
        option = str(problem["loc"][-1]).replace("_", "-") if problem["loc"] else "index"
        raise UserError(f"--{option}: {problem['msg'].removeprefix('Value error, ')}") from None
    began = time.monotonic()
    kept = "vectors that are made are kept: the same command goes on; what stood in --out is as it was"
    with stoppable(lambda: kept), _progress() as report:
        built = build_index(corpus, out, settings, cache or default_cache(), dense, report)
    typer.echo(f"{len(built.corpus)} documents are indexed in {out} ({kind}, {time.monotonic() - began:.0f} s)")


@index_app.command("info")
def info(
    index: Annotated[Path, typer.Argument(help="An index folder.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print index.json instead.")] = False,
) -> None:
    """Show what an index says of itself, and the memory it needs; nothing is loaded."""
    from mempo.retrieval.index import known_kind, memory_need
    from mempo.retrieval.sidecar import read_sidecar

    side = known_kind(index, read_sidecar(index))
    halves = {name: read_sidecar(index / name) for name in ("lexical", "dense") if side.kind == "hybrid"}
    rows: dict[str, Any] = {"kind": side.kind, "documents": side.documents, "corpus sha256": side.corpus_sha256}
    rows |= _flat(side.parameters)
    for name, half in halves.items():
        rows |= {f"{name}: {key}": value for key, value in {"kind": half.kind, **_flat(half.parameters)}.items()}
    if as_json:
        typer.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    table = Table(show_header=False)
    for key, value in rows.items():
        table.add_row(key, json.dumps(value, ensure_ascii=False) if not isinstance(value, str) else value or '""')
    screen = Console()
    (screen if screen.is_terminal else Console(width=120)).print(table, markup=False)
    typer.echo(memory_need(index).line())


def _refuse_idle(given: Mapping[str, Any]) -> None:
    """An option that the kind has no use for would be ignored in silence."""
    kind = given["kind"]
    idle: list[tuple[str, str]] = []
    if kind in ("bm25", "tantivy"):
        idle += [(name, "--kind dense or hybrid") for name in _FOR_VECTORS if name in given]
    if kind != "hybrid" and "lexical" in given:
        idle.append(("lexical", "--kind hybrid"))
    if kind == "dense" and "title_weight" in given:
        idle.append(("title_weight", "an index of words"))
    if "faiss_file" in given:
        unused = [*_OF_FACTORY, "keep_embeddings", "cache"]
        idle += [(name, "building an index, not --faiss") for name in unused if name in given]
    if idle:
        name, use = idle[0]
        option = {"faiss_file": "faiss"}.get(name, name.replace("_", "-"))
        raise UserError(f"--{option} is of no use here: it belongs to {use}")


def _dense_settings(given: Mapping[str, Any]) -> Any:
    from mempo.retrieval.dense_build import DenseSettings

    return DenseSettings(**{key: given[key] for key in _DENSE if key in given})


def _flat(parameters: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested keys as `encoder.pooling`."""
    found: dict[str, Any] = {}
    for key, value in parameters.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{before}{key}.")
        else:
            found[f"{before}{key}"] = value
    return found


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """A bar for each stage on a terminal, now and then a line elsewhere; both on stderr."""
    screen = Console(stderr=True)
    if not screen.is_terminal:
        yield _Lines(screen)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=screen) as bars:
        tasks: dict[str, Any] = {}

        def report(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done, total=total)

        yield report


class _Lines:
    def __init__(self, screen: Console) -> None:
        self._screen = screen
        self._last = time.monotonic()

    def __call__(self, stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._last >= _LINE_EVERY_S:
            self._last = now
            self._screen.print(f"{stage} {done}/{total}", highlight=False, markup=False)
