"""`key=value` of the command line: one parser for every command."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from mempo.config.base import Settings, long_form
from mempo.config.explain import explain, shortened
from mempo.config.yaml_text import load_value
from mempo.errors import ConfigError

S = TypeVar("S", bound=Settings)
MAX_PARTS = 20
"""Of a key; settings have four, keys of the user's own options a few more."""


def parse_override(text: str) -> dict[str, Any]:
    """`rl.steps=20` as `{"rl": {"steps": 20}}`.

    Raises:
        ConfigError: no `=`, no key before it, or a value that is none.
    """
    key, equals, value = text.partition("=")
    parts = [part.strip() for part in key.split(".")]
    if not equals or not all(parts) or len(parts) > MAX_PARTS:
        raise ConfigError(f"{shortened(text)} is not an override; write key=value, for example rl.steps=20")
    try:
        parsed: Any = load_value(value)
    except ConfigError as error:
        raise ConfigError(f"{'.'.join(parts)}: {error}") from error
    for part in reversed(parts):
        parsed = {part: parsed}
    return parsed


def source_and_overrides(source: str | None, overrides: Sequence[str] | None) -> tuple[str | None, list[str]]:
    """What a command was given: where no source is named, the first of the settings stands in its place."""
    found = list(overrides or ())
    if source is not None and "=" in source and not os.path.exists(source):
        return None, [source, *found]
    return source, found


def merge(base: dict[str, Any], layer: Mapping[str, Any]) -> None:
    """Put `layer` over `base`, key by key; an empty mapping clears the key."""
    for key, value in layer.items():
        if isinstance(value, Mapping) and value and isinstance(base.get(key), dict):
            merge(base[key], value)
        else:
            base[key] = _copy(value)


def settings_from(kind: type[S], overrides: Sequence[str], given: Mapping[str, Any] | None = None) -> S:
    """Settings of one class from `key=value`, over what is `given` already.

    Raises:
        ConfigError: an unknown key, or a value that cannot be.
    """
    merged: dict[str, Any] = {}
    merge(merged, long_form(kind, given or {}))
    for override in overrides:
        merge(merged, long_form(kind, parse_override(override)))
    try:
        return kind.model_validate(merged)
    except ValidationError as error:
        raise ConfigError(explain(error, kind)) from error


def _copy(value: Any) -> Any:
    return {key: _copy(item) for key, item in value.items()} if isinstance(value, Mapping) else value
