"""verl's own keys, as the installed package lists them: Hydra takes any key, so a misspelt one would do nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from mempo.errors import nearest

_LISTED = Path("trainer") / "config" / "_generated_ppo_trainer.yaml"


def listed_keys() -> Mapping[str, Any] | None:
    """All settings of verl's trainer with their defaults, nested; None where verl is not installed. Nothing of verl is
    imported."""
    found = find_spec("verl")
    for folder in (found.submodule_search_locations or ()) if found else ():
        file = Path(folder) / _LISTED
        if file.is_file():
            return yaml.safe_load(file.read_text("utf-8"))
    return None


def unlisted(keys: Iterable[str], listed: Mapping[str, Any]) -> list[str]:
    """Those of the dotted `keys` that are not among verl's, each with the nearest that is. What lies in an empty
    section (`engine_kwargs.vllm`) or below a value of None is anybody's."""
    return [f"{key}{hint}" for key in keys if (hint := _hint(key, listed)) is not None]


def _hint(key: str, listed: Any) -> str | None:
    """None: the key is known, or cannot be judged."""
    for part in key.split("."):
        if not isinstance(listed, Mapping) or not listed:
            return None
        if part not in listed:
            return nearest(part, map(str, listed))
        listed = listed[part]
    return None
