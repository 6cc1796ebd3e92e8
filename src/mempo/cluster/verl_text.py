"""verl's configuration as the text of a file that Hydra reads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

_NUMBER = re.compile(r"[-+]?[0-9_.]+([eE][-+]?[0-9]+)?|[-+]?\.?(inf|nan)", re.IGNORECASE)


class _Dumper(yaml.SafeDumper):
    """Texts that look like numbers to Hydra's reader, which knows more of them (`1e5`), are put in quotes."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _quoted(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "'" if _NUMBER.fullmatch(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _quoted)


def verl_yaml(made: Mapping[str, Any]) -> str:
    """The text of the file."""
    return yaml.dump(dict(made), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
