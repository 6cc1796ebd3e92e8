"""A table of texts, shown on a terminal or written as Markdown. Texts may come from outside and stay texts."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.table import Table
from rich.text import Text

Cell = str | Text
_WHOLE_CHARS, _WORD_CHARS = 16, 30
"""Words up to the first stay on one line; a single word beyond the second, such as a path, is broken."""


@dataclass(frozen=True)
class Grid:
    """`rows` `[rows][columns]`. Columns named in `words` are aligned to the left and may take several lines on a
    terminal, all others, numbers, are aligned to the right. `rules`: rows before which a line is drawn on a terminal.
    Where a terminal is too narrow the table comes in parts, each with the first `keys` columns."""

    headers: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    words: Collection[str] = ()
    title: str = ""
    rules: Collection[int] = ()
    keys: int = 1

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        every = range(len(self.headers))
        for gap, folded in ((2, False), (2, True), (1, True)):
            if self._width(every, gap, folded) <= options.max_width:
                yield self._table(every, gap, folded, self.title)
                return
        parts = [[*every[: self.keys + 1]]]
        for column in every[self.keys + 1 :]:
            if self._width([*parts[-1], column], 2, folded=True) <= options.max_width:
                parts[-1].append(column)
            else:
                parts.append([*every[: self.keys], column])
        for n, columns in enumerate(parts):
            yield from [Text()] if n else []
            yield self._table(columns, 2, True, "" if n else self.title)

    def _table(self, columns: Sequence[int], gap: int, folded: bool, title: str) -> Table:
        table = Table(
            title=Text(printable(title)) if title else None,
            title_justify="left",
            box=box.SIMPLE_HEAD,
            show_edge=False,
            pad_edge=False,
            padding=(0, gap - 1, 0, 0),
        )
        heads = [self._head(i, folded) for i in columns]
        lines = max(head.count("\n") for head in heads)
        for i, head in zip(columns, heads, strict=True):
            is_words = self.headers[i] in self.words
            justify: JustifyMethod = "left" if is_words else "right"
            table.add_column(Text("\n" * (lines - head.count("\n")) + head), justify=justify, no_wrap=not is_words)
        for number, row in enumerate(self.rows):
            if number in self.rules:
                table.add_section()
            table.add_row(*(row[i] if isinstance(row[i], Text) else Text(printable(str(row[i]))) for i in columns))
        return table

    def _head(self, column: int, folded: bool) -> str:
        """The header; `folded`: in lines no wider than what stands below it, where its words allow that."""
        header = printable(self.headers[column])
        return "\n".join(textwrap.wrap(header, self._column_width(column, True))) if folded else header

    def _width(self, columns: Sequence[int], gap: int, folded: bool) -> int:
        return sum(self._column_width(i, folded) for i in columns) + gap * (len(columns) - 1)

    def _column_width(self, column: int, folded: bool) -> int:
        """The least that it takes."""
        header, texts = printable(self.headers[column]), [printable(str(row[column])) for row in self.rows]
        heads = header.split() if folded else [header]
        if self.headers[column] in self.words:
            whole = max(map(cell_len, [*heads, *texts]), default=1)
            words = [word for text in (*heads, *texts) for word in text.split()]
            return whole if whole <= _WHOLE_CHARS else min(max(map(cell_len, words), default=1), _WORD_CHARS)
        return max(map(cell_len, [*heads, *texts]), default=1)

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
    return text if re.fullmatch(r"[-+\d.,%–\[\]p ]*", text) else re.sub(r"([\\`*_{}\[\]<>#|!$~])", r"\\\1", text)
