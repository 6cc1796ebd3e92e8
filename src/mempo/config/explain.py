"""What pydantic found wrong with settings, as one line for the user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from mempo.errors import nearest

Layers = Sequence[tuple[str, Mapping[str, Any]]]
"""Where settings came from and what was said there, later ones win."""


def explain(error: ValidationError, layers: Layers = ()) -> str:
    """Every problem: its key, what is wrong, what was given, and where."""
    lines = []
    for problem in error.errors():
        key = ".".join(str(part) for part in problem["loc"])
        given = "" if isinstance(problem.get("input"), Mapping) else f" (given: {problem.get('input')!r})"
        where = next((origin for origin, layer in reversed(layers) if key and _has(layer, key)), "")
        message = _message(key, problem) + given + (f" [{where}]" if where else "")
        lines.append(f"{key}: {message}" if key else message)
    return "; ".join(dict.fromkeys(lines))


def _message(key: str, problem: ErrorDetails) -> str:
    kind, said = problem["type"], problem["msg"].removeprefix("Value error, ")
    if kind == "literal_error":
        known = [name for name in problem["ctx"]["expected"].replace(" or ", ", ").replace("'", "").split(", ") if name]
        return f"{said}{nearest(str(problem['input']), known)}"
    return said


def _has(layer: Any, key: str) -> bool:
    for part in key.split("."):
        if not isinstance(layer, Mapping) or part not in layer:
            return False
        layer = layer[part]
    return True
