"""Answers as files hold them, to the texts that gold is made of."""

from __future__ import annotations

import math
from typing import Any


def as_texts(value: Any) -> Any:
    """The value with every number and yes or no in it as the texts that say it: 1998 → "1998", True → "yes" or "true".

    Arrays of NumPy become lists. NaN, which stands for an empty cell, becomes None; what is no answer stays as it is.
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if not isinstance(value, list | tuple):
        ways = ways_to_say(value)
        return ways[0] if len(ways) == 1 else ways or None
    items = [as_texts(item) for item in value]
    if any(isinstance(item, list | tuple) or hasattr(item, "tolist") for item in value):
        return items
    # Of a list of aliases: every way to say one is another alias.
    return [way for item in items for way in (item if isinstance(item, list) else [item])]


def ways_to_say(value: Any) -> list[Any]:
    """The texts for one value; anything but a number or a boolean is its own."""
    if isinstance(value, bool):
        return ["yes", "true"] if value else ["no", "false"]
    if isinstance(value, float):
        whole = [f"{value:.0f}"] if value.is_integer() and abs(value) < 1e15 else []
        return [] if math.isnan(value) else [*whole, repr(value)]
    return [str(value)] if isinstance(value, int) else [value]
