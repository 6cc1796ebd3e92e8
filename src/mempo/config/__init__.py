"""Every setting of mempo: one file a subject, composed in `schema.py`. Loads neither torch nor transformers."""

from mempo.config.overrides import settings_from
from mempo.config.resolve import Resolved, completed, dump_with_origins, recipe_names, resolve
from mempo.config.schema import Config

__all__ = [
    "Config",
    "Resolved",
    "completed",
    "dump_with_origins",
    "recipe_names",
    "resolve",
    "settings_from",
]
