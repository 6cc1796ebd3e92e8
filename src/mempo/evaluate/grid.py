"""A table of texts, shown on a terminal or written as Markdown. Texts may come from outside and stay texts."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table
from rich.text import Text

Cell = str | Text


@dataclass(frozen=True)
class Grid:
    """`rows` `[rows][columns]`. Columns named in `words` are aligned to the left, all others, numbers, to the right.
    `rules`: rows before which a line is drawn on a terminal. `wrapped`: columns that may take several lines there;
    None: all."""

    headers: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    words: Collection[str] = ()
    title: str = ""
    rules: Collection[int] = ()
    wrapped: Collection[str] | None = None

    def on_screen(self) -> Table:
        title = Text(printable(self.title)) if self.title else None
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        for header in self.headers:
            table.add_column(
                Text(printable(header)),
                justify="left" if header in self.words else "right",
                no_wrap=self.wrapped is not None and header not in self.wrapped,
            )
        for i, row in enumerate(self.rows):
            if i in self.rules:
                table.add_section()
            table.add_row(*(cell if isinstance(cell, Text) else Text(printable(cell)) for cell in row))
        return table

    def markdown(self) -> str:
        """Lines of a Markdown table, each with its end."""
        rule = ["---" if header in self.words else "---:" for header in self.headers]
        texts = [self.headers, *self.rows]
        lines = ["| " + " | ".join(markdown_text(str(cell)) for cell in row) + " |" for row in texts]
        return "\n".join([lines[0], "|" + "|".join(rule) + "|", *lines[1:]]) + "\n"


def rules_between(groups: Sequence[object]) -> list[int]:
    """The rows that begin another group than the row above them."""
    return [i for i in range(1, len(groups)) if groups[i] != groups[i - 1]]


def printable(text: str) -> str:
    """A line of outside text for a terminal: control characters, which a terminal would obey, become `?`."""
    return "".join(char if char.isprintable() else " " if char.isspace() else "?" for char in text)


def markdown_text(text: str) -> str:
    """Outside text within a line of Markdown. Numbers with intervals mean nothing to it, and stay as they are."""
    text = printable(text).strip()
    return text if re.fullmatch(r"[-+\d.%–\[\] ]*", text) else re.sub(r"([\\`*_{}\[\]<>#|!$~])", r"\\\1", text)
