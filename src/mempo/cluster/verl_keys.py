"""verl's own keys: which `cluster.verl` may set, by the table `verl_keys.yaml`.

Hydra takes any key, and verl ignores what it does not know: a misspelt one would do nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from mempo.cluster.versions import VERL
from mempo.config.yaml_text import read_yaml
from mempo.errors import ConfigError, nearest

TABLE = Path(__file__).with_suffix(".yaml")
REST = "*"
"""In a section: the row of everything that has none of its own."""


@dataclass(frozen=True)
class Row:
    """What may be done with a key, and with everything below it. `text`: what to set instead (owned), the kind of
    value (allowed), the reason (refused)."""

    key: str
    rule: str
    text: str
    resume: bool = False
    """Whether a resumed run may have another value."""
    note: str = ""


@dataclass(frozen=True)
class _Kind:
    fits: Callable[[Any], bool]
    said: str


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return _is_whole(value) or (isinstance(value, float) and math.isfinite(value))


KINDS: dict[str, _Kind] = {
    "bool": _Kind(lambda value: isinstance(value, bool), "true or false"),
    "count": _Kind(lambda value: _is_whole(value) and value >= 1, "a whole number of at least 1"),
    "whole": _Kind(lambda value: _is_whole(value) and value >= 0, "a whole number of at least 0"),
    "int": _Kind(_is_whole, "a whole number"),
    "number": _Kind(_is_number, "a number"),
    "share": _Kind(lambda value: _is_number(value) and 0 <= value <= 1, "a number from 0 to 1"),
    "text": _Kind(lambda value: isinstance(value, str) and value != "", "a text"),
    "list": _Kind(lambda value: isinstance(value, list | tuple), "a list"),
    "any": _Kind(lambda value: True, "anything"),
}


@cache
def rows() -> Mapping[str, Row]:
    """All rows by key, in the order of the file."""
    return {row.key: row for row in _rows(read_yaml(TABLE), "")}


def _rows(section: Mapping[str, Any], prefix: str) -> Iterator[Row]:
    for name, found in section.items():
        key = f"{prefix}{name}"
        rule = next((rule for rule in ("owned", "allowed", "refused") if isinstance(found.get(rule), str)), None)
        if rule is None:
            yield from _rows(found, f"{key}.")
        else:
            yield Row(key, rule, found[rule], found.get("resume", False), found.get("note", ""))


def row_of(key: str) -> Row | None:
    """The row of a key: its own, or that of the nearest section above that has one."""
    found, above = rows().get(key), key
    while found is None and above:
        above = above.rpartition(".")[0]
        found = rows().get(above) or rows().get(f"{above}.{REST}")
    return found


def check_keys(given: Mapping[str, Any]) -> None:
    """Refuse keys that the plug-in rests on, that nobody knows, or whose value is of another kind.

    Raises:
        ConfigError: the key, the reason, and what to set instead where there is something.
    """
    for key, value in given.items():
        problem = _problem(key, value)
        if problem:
            raise ConfigError(f"cluster.verl: {problem}")


def _problem(key: str, value: Any) -> str | None:
    row = row_of(key)
    if row is None:
        if any(known.startswith(f"{key}.") for known in rows()):
            return f"{key} is a section of verl's; name the keys in it one by one"
        return f"verl {VERL} has no key {key}{nearest(key, rows())}"
    if row.rule == "owned":
        return f"{key} is made from our own settings; set {row.text}"
    if row.rule == "refused":
        return f"{key} cannot be set: {row.text}"
    kind, optional = row.text.removesuffix("?"), row.text.endswith("?")
    if kind != "any" and key != row.key:
        return f"{row.key} is {said_kind(row)} and has no keys below it; verl {VERL} has no key {key}"
    if (value is None and optional) or kind == "any":
        return None
    return None if KINDS[kind].fits(value) else f"{key} is {said_kind(row)}, not {value!r}"


def said_kind(row: Row) -> str:
    """The kind of value that an allowed key takes, in words."""
    said = KINDS[row.text.removesuffix("?")].said
    return f"{said}, or null" if row.text.endswith("?") else said


def changes_nothing_learnt(keys: Iterable[str]) -> list[str]:
    """Those that a resumed run may have other values of: memory and speed."""
    return [key for key in keys if (row := row_of(key)) and row.resume]
