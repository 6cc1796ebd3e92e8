"""Settings that are gone. Run folders hold every setting of the release that wrote them, so a retired one is read over
where it has the value that is a constant now; any other value is an error that says what to do instead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mempo.errors import ConfigError


@dataclass(frozen=True)
class Retired:
    """`constant`: the value that it always has now. `instead`: what to do, where there is something."""

    constant: Any
    instead: str = ""


RETIRED: dict[str, Retired] = {
    "rl.top_p": Retired(1.0, "RL samples from the whole distribution, a cut tail would bias the ratio; leave top_p=1"),
    "rl.top_k": Retired(0, "RL samples from the whole distribution, a cut tail would bias the ratio; leave top_k=0"),
    "model.lora.dropout": Retired(
        0.0, "with dropout the updated policy is another one than the policy that sampled; leave 0"
    ),
}
"""By dotted key."""


def without_retired(layer: Mapping[str, Any], origin: str = "") -> dict[str, Any]:
    """The same settings without retired ones.

    Raises:
        ConfigError: a retired setting with another value than the constant that took its place.
    """
    return _without(layer, "", f" [{origin}]" if origin else "")


def _without(layer: Mapping[str, Any], prefix: str, where: str) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name, value in layer.items():
        key = f"{prefix}{name}"
        if (gone := RETIRED.get(key)) is not None:
            if value != gone.constant or isinstance(value, bool) != isinstance(gone.constant, bool):
                instead = f"; {gone.instead}" if gone.instead else ""
                raise ConfigError(f"{key} is no setting any more, it is always {gone.constant!r}{instead}{where}")
        elif isinstance(value, Mapping):
            inside = _without(value, f"{key}.", where)
            if inside or not value:  # a section of retired settings alone is gone with them
                kept[name] = inside
        else:
            kept[name] = value
    return kept
