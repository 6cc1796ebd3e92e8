"""YAML in which `1e-6` is a number, as people expect, and not a string, as YAML 1.1 has it."""

from __future__ import annotations

import re
from typing import Any

import yaml

from mempo.errors import ConfigError


class _Loader(yaml.SafeLoader):
    pass


_FLOAT = re.compile(
    r"""^(?:[-+]?(?:[0-9][0-9_]*)\.[0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?(?:[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)
    |[-+]?\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$""",
    re.VERBOSE,
)
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


def load_yaml(text: str, name: str) -> dict[str, Any]:
    """A mapping; an empty document is an empty one.

    Raises:
        ConfigError: not YAML (the place is named), or no mapping.
    """
    try:
        data = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{name} is not valid YAML: {' '.join(str(error).split())}") from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"{name} holds a {type(data).__name__}; a configuration is a mapping of keys to values")
    return data
