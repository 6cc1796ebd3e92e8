"""What every setting is: for `mempo config --explain` and docs/settings.md, from the classes themselves."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from mempo.config.base import Settings, leaves, long_form
from mempo.config.check import RULES
from mempo.config.explain import field_of, kinds_of, section_of
from mempo.config.plan import PlanSettings
from mempo.config.resolve import Resolved, recipe_layer, recipe_names
from mempo.config.retrieval import BuildSettings, ServiceSettings
from mempo.config.schema import Config
from mempo.config.unused import TABLE
from mempo.config.yaml_text import dump_flow
from mempo.errors import ConfigError, nearest

ROOTS: Mapping[str, type[Settings]] = {
    "a configuration": Config,
    "mempo index build": BuildSettings,
    "mempo serve": ServiceSettings,
    "mempo cluster plan": PlanSettings,
}
"""Whose settings there are, each read as `key=value` by the commands that take them."""

_PLAIN = {int: "whole number", float: "number", bool: "true or false", str: "text", Path: "path", NoneType: "null"}
_LIMITS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than", "multiple_of": "a multiple of"}


@dataclass(frozen=True)
class Described:
    """`key`: dotted. `kind`: what it may be, limits included. `section`: the class that it belongs to."""

    key: str
    kind: str
    default: str
    doc: str
    section: type[Settings]
    group: type[Settings] | None
    """The class of its own keys, where it is a group of settings."""


def described(root: type[Settings], prefix: str = "", owner: Settings | None = None) -> Iterator[Described]:
    """Every key of a class in the order of the classes; a group stands before its own keys. `owner`: the settings that
    the owner of a group has there, such as the learning rate of a stage."""
    for name, field in root.model_fields.items():
        group = section_of(field)
        value = field.get_default(call_default_factory=True) if owner is None else getattr(owner, name)
        yield Described(f"{prefix}{name}", _kind(field), _default(value), _doc(field, group), root, group)
        if group is not None:
            yield from described(group, f"{prefix}{name}.", value if isinstance(value, Settings) else None)


def explain_key(key: str, resolved: Resolved | None = None) -> str:
    """Type, default and meaning of a key, who sets it, and what it does not go with; of a group also its keys.

    `resolved`: a configuration whose value is told too.

    Raises:
        ConfigError: no such key, with the nearest one.
    """
    found = [(name, one) for name, root in ROOTS.items() for one in described(root) if one.key == key]
    if not found:
        known = [one.key for root in ROOTS.values() for one in described(root)]
        raise ConfigError(f"no setting is called {key!r}{nearest(key, known)}; docs/settings.md lists all")
    name, one = found[0]
    lines = [f"{key}  ({name})", *(f"  {line}" for line in one.doc.splitlines())]
    lines += [f"  type: {one.kind}", f"  default: {one.default}"]
    if name == "a configuration":
        lines += [f"  recipe {recipe}: {value}" for recipe, value in _recipes(key)]
        if resolved is not None and one.group is None and key in resolved.origins:
            lines.append(f"  here: {dump_flow(dict(leaves(resolved.plain()))[key])}  ({resolved.origins[key]})")
    lines += [f"  {conflict}" for conflict in _conflicts(ROOTS[name], key)]
    if one.group is not None:
        inside = (sub for sub in described(ROOTS[name]) if sub.key.startswith(f"{key}.") and sub.group is None)
        lines += ["", *(f"  {sub.key} = {sub.default}" for sub in inside)]
    return "\n".join(lines)


def _recipes(key: str) -> list[tuple[str, str]]:
    """The recipes that set a key, or keys of a group, and what they say."""
    found = []
    for recipe in recipe_names():
        set_here = dict(leaves(long_form(Config, recipe_layer(recipe)[1])))
        found += [
            (recipe, dump_flow(value) if name == key else f"{name}={dump_flow(value)}")
            for name, value in set_here.items()
            if name == key or name.startswith(f"{key}.")
        ]
    return found


def _conflicts(root: type[Settings], key: str) -> list[str]:
    found = []
    parts = key.split(".")
    for n in range(len(parts)):  # a rule speaks of a key from its own class's point of view
        owner = root if n == 0 else section_of(typing.cast("FieldInfo", field_of(root, parts[:n])))
        own = ".".join(parts[n:])
        for rule in TABLE:
            if owner is not None and rule.of == owner.__name__ and own in rule.keys:
                found.append("refused where: " + rule.sentence.format(key=own, value=_DOTS, s=_DOTS))
    if root is Config:
        found += [
            f"checked together with {', '.join(other for other in keys if other != key)}"
            for keys in RULES.values()
            if key in keys
        ]
    return found


class _Dots:
    """Stands for values that are not known yet in a sentence."""

    def __getattr__(self, name: str) -> _Dots:
        return self

    def __format__(self, spec: str) -> str:
        return "…"

    def __repr__(self) -> str:
        return "…"


_DOTS = _Dots()


def _kind(field: FieldInfo) -> str:
    limits = [
        f"{words} {getattr(rule, name)}"
        for rule in field.metadata
        for name, words in _LIMITS.items()
        if getattr(rule, name, None) is not None
    ]
    return ", ".join([_written(field.annotation), *limits])


def _written(annotation: Any) -> str:
    options = kinds_of(annotation)
    if len(options) > 1:
        return " or ".join(map(_written, options))
    origin, inside = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return ", ".join(f"`{value}`" for value in inside)
    if origin is tuple:
        return f"list of {_written(inside[0])}"
    if origin is dict:
        return "mapping"
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return "group of settings"
    return _PLAIN[annotation]


def _default(value: Any) -> str:
    if value is PydanticUndefined:
        return "none: it must be given"
    if isinstance(value, Settings):
        return "those of its keys"
    return dump_flow(list(value) if isinstance(value, tuple) else value)


def _doc(field: FieldInfo, group: type[Settings] | None) -> str:
    """What is said of the key itself, or else of the group."""
    text = field.description or (group.__doc__ if group is not None else "") or ""
    return "\n".join(line.strip() for line in text.strip().splitlines())
