"""Write docs/settings.md from the settings themselves. Usage: python scripts/settings_reference.py OUT"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from mempo.config.base import Settings
from mempo.config.describe import ROOTS, Described, described

HEADER = """# All settings

Generated from the settings themselves by `make docs`; a test checks that it is current. `mempo config --explain KEY`
prints one of them, and what it conflicts with; `mempo config RECIPE` prints all values, and where each came from.

Write them into a YAML file, or as `KEY=VALUE` on the command line (`rl.steps=20`, `data.objectives=[2, 4]`).
"""
INTRODUCTIONS = {
    "a configuration": "For every command that takes a recipe, a YAML file or a run folder, and `KEY=VALUE`.",
    "mempo index build": "`mempo index build CORPUS --out DIR KEY=VALUE…` ([retrieval.md](retrieval.md)).",
    "mempo serve": "`mempo serve INDEX KEY=VALUE…` ([retrieval.md](retrieval.md)).",
    "mempo cluster plan": "`mempo cluster plan [SOURCE] KEY=VALUE…` ([cluster.md](cluster.md)).",
}


def reference() -> str:
    return HEADER + "".join(_root(name, root) for name, root in ROOTS.items())


def _root(name: str, root: type[Settings]) -> str:
    sections: dict[str, list[Described]] = {"": []}
    remarks: dict[str, str] = {}
    for one in described(root):
        if one.group is not None:
            sections[one.key] = []
            remarks[one.key] = one.doc + ("\n\nNot set by default." if one.default == "null" else "")
        else:
            sections[one.key.rpartition(".")[0]].append(one)
    title = name[0].upper() + name[1:] if name == "a configuration" else f"`{name}`"
    parts = [f"\n## {title}\n\n{INTRODUCTIONS[name]}\n"]
    for section, rows in sections.items():
        head = [f"\n### `{section}`\n\n{remarks[section]}\n"] if section else []
        parts += [*head, *_table(rows)] if rows or section else []
    return "".join(parts)


def _table(rows: list[Described]) -> Iterator[str]:
    if rows:
        yield "\n| setting | is | default | |\n|---|---|---|---|\n"
    for one in rows:
        cells = (f"`{one.key}`", one.kind, _code(one.default), one.doc.replace("\n", " "))
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _code(text: str) -> str:
    if "\n" in text:  # YAML folds a text of several lines; a cell of a table has one
        text = '"' + re.sub(r"\s*\n\s*", r"\\n", text.strip("'")) + '"'
    return f"``{text}``" if "`" in text else f"`{text}`"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(reference(), encoding="utf-8")
