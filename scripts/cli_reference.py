"""Write docs/cli.md from the command line's own help. Usage: python scripts/cli_reference.py OUT"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

HEADER = "# Command line\n\nGenerated from the commands' own help by `make docs`; a test checks that it is current.\n"


def reference() -> str:
    """The help of every command, as Markdown, 100 columns wide whatever the terminal."""
    os.environ["TERMINAL_WIDTH"] = os.environ["COLUMNS"] = "100"
    from mempo.cli.main import app

    return HEADER + "".join(_sections(typer.main.get_command(app), "mempo", None))


def _sections(command: Any, name: str, parent: Any) -> Iterator[str]:
    settings = {**command.context_settings, "terminal_width": 100, "max_content_width": 100}
    context = command.context_class(command, info_name=name, parent=parent, **settings)
    text = "\n".join(line.rstrip() for line in command.get_help(context).splitlines())
    yield f"\n## `{context.command_path}`\n\n```text\n{text.strip()}\n```\n"
    for sub in getattr(command, "commands", {}).values():
        yield from _sections(sub, sub.name or "", context)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(reference(), encoding="utf-8")
