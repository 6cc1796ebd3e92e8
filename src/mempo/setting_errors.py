"""What to write where a setting wants a list or a mapping: pydantic says what it got."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_LISTS = ("tuple_type", "list_type", "set_type", "frozen_set_type")
_MAPPINGS = ("dict_type", "mapping_type")
_GROUPS = ("model_type", "model_attributes_type", "dataclass_type")


def what_to_write(kind: str, key: str, given: Any) -> str | None:
    """A sentence for an error of pydantic's type `kind` about the dotted `key`; None where its own message will do."""
    if kind in _LISTS:
        return f"is a list; write {key}=[{_items(given)}]"
    if kind in _MAPPINGS:
        return f"is a mapping; write {key}={{name: value}}, or {key}={{}} for none"
    if kind in _GROUPS:
        return f"is a group of settings; write {key}.NAME=value, or {key}={{NAME: value}}"
    return None


def _items(given: Any) -> str:
    """What was given as the inside of a list, where it can be one."""
    if isinstance(given, str) and given.strip():
        return ", ".join(part.strip() for part in given.split(",") if part.strip())
    if isinstance(given, int | float):
        return str(given).lower()
    return "first, second" if given is None or isinstance(given, Mapping | Sequence) else str(given)
