"""The user's own objects by import path, `package.module:name`."""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from mempo.errors import ConfigError, UserError, nearest

T = TypeVar("T")


PARAMETERS: dict[str, int | None] = {
    "reward": 2,
    "advantages": None,
    "agent.tools": 0,
    "agent.context": 1,
    "data.environment": None,
    "search.web.provider": 0,
    "access.web.reader": 0,
}
"""The settings that may name an object of the user's own, and how many arguments it is called with; None: options."""


def load_own(path: str, key: str) -> Any:
    """The object that a setting of `PARAMETERS` names. Raises as `load_object` does."""
    return load_object(path, key, PARAMETERS[key])


def load_object(path: str, what: str, parameters: int | None = None) -> Any:
    """The object that `path` names. The current folder is searched first, like `python -m` does.

    Args:
        what: the configuration key, for messages.
        parameters: how many positional arguments a call must accept (None: not checked).

    Raises:
        ConfigError: module or name missing, not callable, or another signature.
    """
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise ConfigError(f"{what}: {path!r} is not an import path; write package.module:name")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # the user's module may fail in any way, a syntax error among them
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{what}: module {module_name!r} cannot be imported ({reason})") from error
    if not hasattr(module, name):
        hint = nearest(name, vars(module))
        raise ConfigError(f"{what}: {module_name} has no {name!r}{hint}")
    found = getattr(module, name)
    if not callable(found):
        raise ConfigError(f"{what}: {path} is a {type(found).__name__}, which cannot be called")
    if parameters is not None:
        try:
            inspect.signature(found).bind(*range(parameters))
        except TypeError as error:
            shown = f"{name}{inspect.signature(found)}"
            raise ConfigError(f"{what}: {shown} cannot be called with {parameters} arguments ({error})") from error
    return found


def call_own(what: str, function: Callable[..., T], *arguments: Any, **keywords: Any) -> T:
    """Call the user's own code; whatever it raises becomes one line that says where.

    Raises:
        UserError: `what`, the exception, file and line.
    """
    try:
        return function(*arguments, **keywords)
    except UserError:
        raise
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        message = " ".join(str(error).split())
        raise UserError(
            f"{what} raised {type(error).__name__}: {message} ({place.filename}, line {place.lineno})"
        ) from error
