"""What pydantic found wrong with settings, as one line for the user."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from mempo.config.addresses import masked
from mempo.config.base import UNKNOWN_KEY, Settings
from mempo.config.yaml_text import dump_flow
from mempo.errors import nearest

Layers = Sequence[tuple[str, Mapping[str, Any]]]
"""Where settings came from and what was said there, later ones win."""

SHOWN_CHARS = 80


def explain(error: ValidationError, kind: type[Settings], layers: Layers = ()) -> str:
    """Every problem of settings of a class: its key, what is wrong, what was given, and where."""
    lines = []
    for problem in error.errors():
        names = _names(kind, problem["loc"])
        key = ".".join(names)
        given = "" if isinstance(problem.get("input"), Mapping) else f" (given: {shortened(problem.get('input'))})"
        unknown = [problem.get("ctx", {})["key"]] if problem["type"] == UNKNOWN_KEY else []
        said_in = [*names, *unknown]
        where = next((origin for origin, layer in reversed(layers) if said_in and _has(layer, said_in)), "")
        message = _message(kind, names, problem) + given + (f" [{where}]" if where else "")
        lines.append(f"{key}: {message}" if key else message)
    return masked("; ".join(dict.fromkeys(lines)))


def shortened(value: Any) -> str:
    """As Python writes it, at most about 80 characters."""
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[: SHOWN_CHARS - 20]}… ({len(text)} characters)"


def section_of(field: FieldInfo) -> type[Settings] | None:
    """The class of a key that holds settings of its own; None for any other."""
    found = [kind for kind in kinds_of(field.annotation) if isinstance(kind, type) and issubclass(kind, Settings)]
    return found[0] if found else None


def field_of(kind: type[Settings], names: Sequence[str]) -> FieldInfo | None:
    """The field of a dotted key; None where there is none."""
    field: FieldInfo | None = None
    section: type[Settings] | None = kind
    for name in names:
        field = section.model_fields.get(name) if section is not None else None
        if field is None:
            return None
        section = section_of(field)
    return field


def kinds_of(annotation: Any) -> tuple[Any, ...]:
    """What a value may be: the parts of `X | None`, or the one."""
    union = typing.get_origin(annotation) in (types.UnionType, typing.Union)
    return typing.get_args(annotation) if union else (annotation,)


def _names(kind: type[Settings], loc: Sequence[str | int]) -> list[str]:
    """The names of the key, without what pydantic adds of its own: places in a list, members of a union."""
    names: list[str] = []
    for part in map(str, loc):
        if names and field_of(kind, [*names, part]) is None:
            break
        names.append(part)
    return names


def _message(kind: type[Settings], names: Sequence[str], problem: ErrorDetails) -> str:
    said = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "literal_error":
        known = [name.strip("'") for name in problem.get("ctx", {})["expected"].replace(" or ", ", ").split(", ")]
        return said + nearest(str(problem["input"]), known)
    if problem["type"] == "string_type" and isinstance(problem["input"], int | float):
        return f"this is a text; write {'.'.join(names)}='\"{problem['input']}\"'"
    field = field_of(kind, names)
    if field is None or problem["type"] not in ("tuple_type", "dict_type", "model_type"):
        return said
    return f"{_form(field)}; write {'.'.join(names)}{_example(field)}"


def _form(field: FieldInfo) -> str:
    if section_of(field) is not None:
        return "this is a group of settings"
    return (
        "this is a list"
        if any(typing.get_origin(kind) is tuple for kind in kinds_of(field.annotation))
        else "this is a mapping"
    )


def _example(field: FieldInfo) -> str:
    """How a value is written: the default where it shows how, else values of the right kind."""
    section = section_of(field)
    if section is not None:
        name, first = next(iter(section.model_fields.items()))
        value = dump_flow(first.get_default(call_default_factory=True)) if not first.is_required() else "…"
        return f".{name}={value}, or {{{name}: {value}}}"
    default = field.get_default(call_default_factory=True)
    if default:
        return f"={dump_flow(list(default))}"
    inner = [typing.get_args(kind)[0] for kind in kinds_of(field.annotation) if typing.get_origin(kind) is tuple]
    if inner:
        return "=[2, 4]" if inner[0] in (int, float) else "=[a, b]"
    return "={name: value}"


def _has(layer: Any, names: Sequence[str]) -> bool:
    for part in names:
        if not isinstance(layer, Mapping) or part not in layer:
            return False
        layer = layer[part]
    return True
