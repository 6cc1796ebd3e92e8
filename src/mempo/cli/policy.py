"""What commands that ask a policy share: how it is named, and which configuration it is asked under."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from mempo.cli.completing import keys, sources
from mempo.errors import UserError

if TYPE_CHECKING:
    from mempo.config import Resolved


def key_values(help: str, complete: bool = False) -> Any:
    """Settings after the other arguments. `complete`: they are those of a run, so a shell may offer them."""
    return typer.Argument(
        metavar="KEY=VALUE...", help=help, show_default=False, autocompletion=keys if complete else None
    )


_SOURCE = typer.Argument(help="A recipe, a YAML file, or a run folder.", show_default=False, autocompletion=sources)
Source = Annotated[str, _SOURCE]
OptionalSource = Annotated[str | None, _SOURCE]
Overrides = Annotated[list[str] | None, key_values("Settings that win over the file.", complete=True)]
Out = Annotated[Path, typer.Option("--out", help="The folder to write.", show_default=False)]
Force = Annotated[
    bool, typer.Option("--force", help="Replace what mempo made there; files of others are kept, as NAME.kept.")
]
Model = Annotated[
    str | None,
    typer.Argument(help="A run folder, or a model folder or name; none with --server.", show_default=False),
]
ConfigFile = Annotated[str | None, typer.Option("--config", help="Recipe or YAML file; a run folder has its own.")]
Server = Annotated[
    str | None, typer.Option("--server", help="An OpenAI-compatible server, http://host:port, to ask instead.")
]
ServedModel = Annotated[
    str | None, typer.Option("--served-model", help="The server's name of the model, where it serves several.")
]
Tokenizer = Annotated[
    str | None, typer.Option("--tokenizer", help="Tokenizer of the served model: a folder, a name, or bytes.")
]


Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors alone; what is made is in the files.")]


def console(quiet: bool = False, stderr: bool = False) -> Console:
    """A terminal as it is. Elsewhere nothing is drawn over, whatever the environment says of colors."""
    found = Console(quiet=quiet, stderr=stderr)
    return found if found.file.isatty() else Console(quiet=quiet, stderr=stderr, force_interactive=False)


@dataclass(frozen=True)
class Served:
    """The options of a model server."""

    url: str | None = None
    model: str | None = None
    tokenizer: str | None = None


@dataclass(frozen=True)
class NamedPolicy:
    """`path`: the model to load; None: it is behind `resolved.config.server`. `run`: the run folder it comes from."""

    resolved: Resolved
    path: str | None
    run: Path | None


def named_policy(
    model: str | None, overrides: list[str] | None, config: str | None, served: Served, more: list[str]
) -> NamedPolicy:
    """The policy that a command line names. `more`: settings that win over `overrides`.

    Raises:
        UserError: nothing is named, or options that contradict each other.
    """
    from mempo.config import resolve
    from mempo.config.overrides import source_and_overrides
    from mempo.config.yaml_text import dump_flow
    from mempo.run.evaluate import final_model

    model, settings = source_and_overrides(model, overrides)
    if model is None and served.url is None and config is None:
        raise UserError("nothing to evaluate is named: give a run folder, a model with --config, or --server")
    folder = Path(model) if model is not None else None
    is_run = folder is not None and (folder / "config.yaml").is_file()
    if not is_run and config is None:
        raise UserError(
            f"{model or served.url} is not a run folder, so the questions are not known; name them with --config"
        )
    settings += more
    if served.url is not None:
        tokenizer = served.tokenizer
        if tokenizer is None and folder is not None:
            tokenizer = str(final_model(folder)) if is_run else model
        settings += ["toy=null", "model.path=null", "start=null"]
        named = {"url": served.url, "model": served.model, "tokenizer": tokenizer}
        settings += [f"server.{key}={dump_flow(value)}" for key, value in named.items() if value is not None]
    elif served.model is not None or served.tokenizer is not None:
        raise UserError("--served-model and --tokenizer belong to --server, which is not given")
    resolved = resolve(config or model, [*settings, "rl.steps=0", "sft.steps=0"])
    run = folder if is_run else None
    if resolved.config.server is not None:
        return NamedPolicy(resolved, None, run)
    path = str(final_model(run)) if run is not None else model or resolved.config.model.path
    if path is None:
        raise UserError("no model is named; give a run folder or a model before the settings")
    return NamedPolicy(resolved, path, run)
