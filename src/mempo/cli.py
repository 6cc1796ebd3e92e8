"""The command line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from mempo.errors import UserError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
console = Console()

Source = Annotated[str, typer.Argument(help="A recipe, a YAML file, or a run folder.", show_default=False)]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE...", help="Settings that win over the file.", show_default=False)
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run in the output folder.")]


@app.command()
def train(
    source: Source,
    overrides: Overrides = None,
    resume: Resume = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the resolved configuration and stop.")] = False,
) -> None:
    """Train an agent: demonstrations, SFT, reinforcement learning, evaluation, as the configuration says."""
    from mempo.config import dump_with_origins, resolve

    resolved = resolve(source, overrides or ())
    if dry_run:
        typer.echo(dump_with_origins(resolved), nl=False)
        return
    from mempo.pipeline import train as run_training

    run_training(resolved, resume, console)


@app.command()
def config(source: Annotated[str | None, typer.Argument(show_default=False)] = None, overrides: Overrides = None) -> None:
    """Print the resolved configuration, and where each value came from."""
    from mempo.config import dump_with_origins, resolve

    typer.echo(dump_with_origins(resolve(source, overrides or ())), nl=False)


def main() -> None:
    """Entry point: a `UserError` is one clear line and exit code 2."""
    try:
        app()
    except UserError as error:
        typer.echo(f"mempo: {error}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
