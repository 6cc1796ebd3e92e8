"""Write docs/api.md from the docstrings of what `import mempo` offers. Usage: python scripts/api_reference.py OUT"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import mempo

HEADER = """# Python API

What `import mempo` offers, generated from its docstrings by `make docs`; a test checks that it is current. Importing it
loads nothing heavy: torch and transformers are loaded by the first function that needs them. Everything else in the
package may change between releases; the protocols for code of your own are in [extending.md](extending.md).
"""
WIDTH = 100


def reference() -> str:
    return HEADER + "".join(part for name in mempo.__all__ for part in _entry(name, getattr(mempo, name)))


def _entry(name: str, found: Any) -> Iterator[str]:
    yield f"\n## `{name}`\n"
    if not inspect.isclass(found):
        yield _signature(f"def {name}", found)
    elif is_dataclass(found):
        yield _fields(name, found)
    yield _text(found)
    for member, value in vars(found).items() if inspect.isclass(found) else ():
        if member.startswith("_") or not inspect.getdoc(value):
            continue
        if inspect.isfunction(value):
            yield f"\n### `{name}.{member}`\n" + _signature(f"def {member}", value) + _text(value)
        elif isinstance(value, property):
            yield f"\n### `{name}.{member}`\n" + _text(value)


def _fields(name: str, found: Any) -> str:
    """The fields of a dataclass, as it would be written."""
    lines = [f"    {parameter}\n" for parameter in inspect.signature(found).parameters.values()]
    return f"\n```py\nclass {name}:\n{_unquoted(''.join(lines))}```\n"


def _signature(head: str, found: Any) -> str:
    signature = inspect.signature(found)
    line = f"{head}{signature}: ..."
    if len(line) > WIDTH:
        inside = "".join(f"    {parameter},\n" for parameter in signature.parameters.values())
        returns = line[line.rindex(")") + 1 :]
        line = f"{head}(\n{inside}){returns}"
    return f"\n```py\n{_unquoted(line)}\n```\n"


def _unquoted(line: str) -> str:
    """Annotations are texts (`from __future__ import annotations`); a reader wants them without quotes."""
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", line).replace("<factory>", "{}")


def _text(found: Any) -> str:
    """A docstring as Markdown, its `Raises:` as a list."""
    text, _, raises = (inspect.getdoc(found) or "").partition("\nRaises:\n")
    listed = re.sub(r"^    (\w+): ", r"- `\1`: ", raises, flags=re.MULTILINE)
    return f"\n{text.strip()}\n" + (f"\nRaises:\n\n{listed.replace('    ', '  ').rstrip()}\n" if raises else "")


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(reference(), encoding="utf-8")
