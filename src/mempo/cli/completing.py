"""What a shell offers at Tab: recipes and files for a source, keys for settings."""

from __future__ import annotations

from glob import escape, glob
from pathlib import Path


def sources(incomplete: str) -> list[str]:
    """Recipes, YAML files and folders."""
    from mempo.config.resolve import recipe_names

    paths = [path for path in sorted(glob(f"{escape(incomplete)}*")) if path.endswith(".yaml") or Path(path).is_dir()]
    return [*(name for name in recipe_names() if name.startswith(incomplete)), *paths]


def keys(incomplete: str) -> list[str]:
    """Settings of a run, as `key=`."""
    from mempo.config.describe import described
    from mempo.config.schema import Config

    return [f"{one.key}=" for one in described(Config) if one.key.startswith(incomplete)]
