"""`mempo view`: a run, an evaluation or several, in the browser or in one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mempo.errors import UserError


def view(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Folders of training runs or evaluations; also of a cluster.", show_default=False),
    ],
    html: Annotated[
        Path | None, typer.Option("--html", help="Write a report in one file that can be mailed, and stop.")
    ] = None,
    figures: Annotated[
        Path | None, typer.Option("--figures", help="Write the curves as PNG and SVG into a folder, and stop.")
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option("--tokenizer", help="A folder or name to decode with; default: the run's own.")
    ] = None,
    host: Annotated[
        str, typer.Option(help="The address to listen on; any but this machine's own puts a secret into the URL.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 0,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the browser.")] = False,
) -> None:
    """Look at runs: curves, groups, and rollouts turn by turn as the policy saw them (docs/view.md)."""
    if html is not None and figures is not None:
        raise UserError("--html and --figures each write and stop; give one at a time")
    if figures is not None:
        from mempo.view.figures import save_curves

        typer.echo(f"{', '.join(save_curves(runs, figures))} are in {figures}")
        return
    if html is not None:
        from mempo.view.report import write_report

        write_report(runs, html, tokenizer)
        typer.echo(f"the report is in {html}")
        return
    from mempo.view.serve import serve

    serve(runs, host, port, tokenizer, typer.echo, open_browser)
