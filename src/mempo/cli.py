"""The command line. Heavy modules are imported by the command that needs them, so that `--help` is quick."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from mempo.errors import UserError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
index_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Build an index of a corpus.")
world_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Write the corpus and questions of a world.")
app.add_typer(index_app, name="index")
app.add_typer(world_app, name="world")

Source = Annotated[str, typer.Argument(help="A recipe, a YAML file, or a run folder.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE...", help="Settings that win over the file.", show_default=False),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run in the output folder.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the resolved configuration and stop.")]
Out = Annotated[Path, typer.Option("--out", help="The folder to write.", show_default=False)]


def console() -> Console:
    """A terminal as it is; elsewhere wide enough for the tables."""
    found = Console()
    return found if found.is_terminal else Console(width=max(found.width, 120))


@app.command()
def train(source: Source, overrides: Overrides = None, resume: Resume = False, dry_run: DryRun = False) -> None:
    """Train an agent: demonstrations, SFT, reinforcement learning, evaluation, as the configuration says."""
    _train(source, list(overrides or ()), resume, dry_run)


@app.command()
def sft(source: Source, overrides: Overrides = None, resume: Resume = False, dry_run: DryRun = False) -> None:
    """The cold start alone: `train` with rl.steps=0."""
    _train(source, [*(overrides or ()), "rl.steps=0"], resume, dry_run)


def _train(source: str, overrides: list[str], resume: bool, dry_run: bool) -> None:
    from mempo.config import dump_with_origins, resolve

    resolved = resolve(source, overrides)
    if dry_run:
        typer.echo(dump_with_origins(resolved), nl=False)
        return
    from mempo.pipeline import train as run_training

    run_training(resolved, resume, console())


@app.command("eval")
def evaluate(
    model: Annotated[str, typer.Argument(help="A run folder, or a model folder or name.", show_default=False)],
    overrides: Overrides = None,
    config: Annotated[
        str | None, typer.Option("--config", help="Recipe or YAML file; a run folder has its own.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Save rollouts and measures in this folder.")] = None,
) -> None:
    """Evaluate a policy: how good, at what context cost, with which notes."""
    from mempo.config import resolve
    from mempo.pipeline import evaluate_model, final_model

    folder = Path(model)
    is_run = (folder / "config.yaml").is_file()
    if not is_run and config is None:
        raise UserError(f"{model} is no run folder, so the questions are not known; name them with --config")
    resolved = resolve(config or model, overrides or ())
    evaluate_model(resolved, str(final_model(folder)) if is_run else model, out, console())


@app.command("config")
def show_config(
    source: Annotated[str | None, typer.Argument(help="A recipe, a YAML file, or a run folder.")] = None,
    overrides: Overrides = None,
) -> None:
    """Print the resolved configuration, and where each value came from."""
    from mempo.config import dump_with_origins, resolve

    typer.echo(dump_with_origins(resolve(source, overrides or ())), nl=False)


@index_app.command("build")
def build_index(
    corpus: Annotated[Path, typer.Argument(help="A corpus file, jsonl or jsonl.gz.", show_default=False)], out: Out
) -> None:
    """Build a BM25 index of a corpus (formats: docs/data.md)."""
    from mempo.retrieval.corpus import Corpus
    from mempo.retrieval.index import Bm25Index

    opened = Corpus.open(corpus)
    Bm25Index.build(opened, out)
    typer.echo(f"{len(opened)} documents are indexed in {out}")


@app.command()
def search(
    index: Annotated[Path, typer.Argument(help="An index folder.", show_default=False)],
    query: Annotated[str, typer.Argument(show_default=False)],
    top_k: Annotated[int, typer.Option("--top-k", min=1, help="How many passages.")] = 5,
) -> None:
    """Ask an index."""
    from mempo.retrieval.index import open_index

    hits = open_index(index).retrieve([query], top_k)[0]
    if not hits:
        typer.echo("nothing was found")
    for n, hit in enumerate(hits, start=1):
        where = f"  {hit.document.url}" if hit.document.url else ""
        typer.echo(f"[{n}] {hit.document.title}  ({hit.score:.2f}){where}\n{hit.document.text}\n")


@world_app.command("atlas")
def atlas(
    out: Out,
    rendering: Annotated[str, typer.Option(help="prose or cards.")] = "prose",
    subset: Annotated[str, typer.Option(help="everything or toy.")] = "everything",
    objectives: Annotated[str, typer.Option(help="Numbers of objectives, such as 2,4,8.")] = "1",
    train_questions: Annotated[int, typer.Option("--train", min=0, help="Training questions.")] = 2000,
    test_questions: Annotated[int, typer.Option("--test", min=0, help="Test questions, of other entities.")] = 200,
    seed: Annotated[int, typer.Option(min=0)] = 0,
) -> None:
    """Write corpus.jsonl, train.jsonl and test.jsonl: real facts about countries, cities, elements and laureates."""
    from mempo.worlds.atlas import write
    from mempo.worlds.registry import make_atlas

    try:
        sizes = tuple(int(k) for k in objectives.split(","))
    except ValueError:
        raise UserError(f"--objectives {objectives!r} is no list of whole numbers; write 2 or 2,4,8") from None
    world = make_atlas(rendering=rendering, subset=subset)
    counts = write(out, world, train=train_questions, test=test_questions, objectives=sizes, seed=seed)
    for name, lines in counts.items():
        typer.echo(f"{out / name}: {lines} lines")


def main() -> None:
    """Entry point: a `UserError` is one clear line and exit code 2."""
    try:
        app()
    except UserError as error:
        typer.echo(f"mempo: {error}", err=True)
        sys.exit(2)
    except OSError as error:  # a folder that cannot be written, a full disk
        typer.echo(f"mempo: {type(error).__name__}: {error}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
