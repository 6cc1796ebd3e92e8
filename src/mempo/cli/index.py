"""`mempo index`: build an index, and show what one is."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from mempo.cli.policy import Out, Quiet, console, key_values
from mempo.progress import stages
from mempo.storage.stopping import stoppable

index_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Build an index of a corpus, or describe one."
)


@index_app.command("build")
def build(
    corpus: Annotated[
        Path, typer.Argument(help="A corpus file: jsonl, TSV, CSV or parquet, also gzip or zst.", show_default=False)
    ],
    out: Out,
    overrides: Annotated[
        list[str] | None,
        key_values("Settings (docs/retrieval.md), such as kind=dense encoder=minilm dense.factory=SQ8."),
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Replace another index; build although memory is short or a file disagrees."),
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Build an index of a corpus; a killed build resumes where it stopped (docs/retrieval.md)."""
    from mempo.config.overrides import settings_from
    from mempo.config.retrieval import BuildSettings

    settings = settings_from(BuildSettings, overrides or ())
    from mempo.retrieval.build import build_index

    began = time.monotonic()
    screen = console(quiet, stderr=True)
    kept = "finished vectors are kept: the same command resumes; --out is unchanged"
    with stoppable(lambda: kept), stages(screen, "document") as report:
        built = build_index(corpus, out, settings, report, force)
    if not quiet:
        typer.echo(
            f"{len(built.corpus)} documents are indexed in {out} ({settings.kind}, {time.monotonic() - began:.0f} s)"
        )


@index_app.command("info")
def info(
    index: Annotated[Path, typer.Argument(help="An index folder.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print index.json instead.")] = False,
) -> None:
    """Show what an index says of itself, and the memory it needs; nothing is loaded."""
    from mempo.retrieval.index import known_kind, memory_need
    from mempo.retrieval.index_folder import read_sidecar

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
    console().print(table, markup=False)
    typer.echo(memory_need(index).line())


def _flat(parameters: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested keys as `encoder.pooling`."""
    found: dict[str, Any] = {}
    for key, value in parameters.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{before}{key}.")
        else:
            found[f"{before}{key}"] = value
    return found
