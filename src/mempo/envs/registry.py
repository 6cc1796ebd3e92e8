"""Environments by name, or by import path."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from mempo.config.base import is_import_path
from mempo.envs.atlas import EVERYTHING, TEST_FRACTION, TOY, AtlasEnvironment, Subset
from mempo.envs.maze import MazeEnvironment
from mempo.errors import ConfigError, nearest
from mempo.rollout.interfaces import Environment
from mempo.rollout.plugins import call_own, load_own


def make_atlas(**options: Any) -> AtlasEnvironment:
    """Options: `rendering`, `forms`, `test_fraction`, `subset` (`everything`, `toy`, or a mapping as `Subset` has it).

    Raises:
        ConfigError: an option that does not exist, or a value it cannot have.
    """
    subset = options.pop("subset", "everything")
    if isinstance(subset, Mapping):
        known = {field.name for field in dataclasses.fields(Subset)}
        for key in subset:
            if key not in known:
                raise ConfigError(f"data.environment_options.subset: unknown key {key!r}{nearest(str(key), known)}")
        try:
            chosen = Subset(**_tuples(subset))
        except TypeError as error:
            raise ConfigError(f"data.environment_options.subset: a value of the wrong kind ({error})") from error
    elif subset in ("everything", "toy"):
        chosen = TOY if subset == "toy" else EVERYTHING
    else:
        raise ConfigError(f"data.environment_options.subset is {subset!r}; give everything, toy, or a mapping")
    fraction = options.get("test_fraction", TEST_FRACTION)
    if isinstance(fraction, bool) or not isinstance(fraction, int | float):
        raise ConfigError(f"data.environment_options.test_fraction is {fraction!r}; give a number between 0 and 1")
    forms = options.get("forms")
    if isinstance(forms, str):
        options["forms"] = (forms,)
    return AtlasEnvironment(subset=chosen, **_tuples(options))


def _tuples(options: Mapping[str, Any]) -> dict[str, Any]:
    """YAML has lists where the atlas has tuples."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}


def make_maze(**options: Any) -> MazeEnvironment:
    """Options: the fields of `MazeEnvironment`.

    Raises:
        ConfigError: a value that an option cannot have (as `MazeError`).
    """
    return MazeEnvironment(**options)


_ENVIRONMENTS: dict[str, Callable[..., Environment]] = {"atlas": make_atlas, "maze": make_maze}
_OPTIONS = {
    "atlas": ("rendering", "forms", "subset", "test_fraction"),
    "maze": tuple(field.name for field in dataclasses.fields(MazeEnvironment)),
}


def make_environment(name: str, options: Mapping[str, Any]) -> Environment:
    """The environment called `name`, made with `options`.

    Raises:
        ConfigError: an unknown environment or option, or a factory that returns something else.
    """
    if is_import_path(name):
        factory = load_own(name, "data.environment")
        try:
            inspect.signature(factory).bind(**options)
        except TypeError as error:
            raise ConfigError(f"data.environment_options do not fit {name}: {error}") from error
        environment = call_own(f"data.environment: {name}", factory, **options)
        if not isinstance(environment, Environment):
            raise ConfigError(
                f"data.environment: {name} returned a {type(environment).__name__}, which is not an Environment "
                "(name, documents, questions)"
            )
        return environment
    if name not in _ENVIRONMENTS:
        raise ConfigError(
            f"unknown environment {name!r}{nearest(name, _ENVIRONMENTS)}; known: {', '.join(_ENVIRONMENTS)}, "
            "or module:factory"
        )
    for key in options:
        if key not in _OPTIONS[name]:
            hint = nearest(key, _OPTIONS[name])
            raise ConfigError(
                f"data.environment_options: {name} has no option {key!r}{hint}; known: {', '.join(_OPTIONS[name])}"
            )
    return _ENVIRONMENTS[name](**options)
