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
    "model.compile": Retired(False, "for long runs take a faster engine (sampler.engine=vllm)"),
    "model.lora.dropout": Retired(
        0.0, "with dropout the updated policy is another one than the policy that sampled; leave 0"
    ),
    "advantages.eps": Retired(1e-6),
    "advantages.baseline": Retired(
        "group", "policies trained on baselines by state learned no better (docs/results.md)"
    ),
    "memory.std_floor": Retired(0.0),
    "sft.expert.open_separator": Retired("; "),
    "toy.head_size": Retired(32, "toy.layers and toy.hidden_size make the policy larger"),
    "toy.init_range": Retired(0.12),
    "toy.rope_theta": Retired(100.0),
    "toy.look_back": Retired(3.0),
    "prompt.short_results": Retired(False, "a context that shows fewer results is shorter: memory, or window(k)"),
    "search.short_passage_chars": Retired(160),
    "access.short_page_chars": Retired(400),
    "search.max_query_chars": Retired(2000),
    "access.max_url_chars": Retired(2000),
    "access.web.content_types": Retired(["text/html", "application/xhtml+xml", "text/plain"]),
    "access.web.user_agent": Retired("mempo"),
    "search.retry.jitter": Retired(0.5),
    "access.retry.jitter": Retired(0.5),
    "server.retry.jitter": Retired(0.5),
    "data.client.max_reply_bytes": Retired(256 << 20),
    "server.max_reply_bytes": Retired(16 << 20),
}
"""By dotted key."""


_DEFAULTS_THEN = {"lost_notes": "ignored", "fade_batches": None}
"""Of `memory.*`, before `recommended` had them otherwise: what a run stands for that was begun without these keys."""


RENAMED = {
    "data.world": "data.environment",
    "data.world_options": "data.environment_options",
    "credit": "advantages",
}
"""By dotted key: what it is called now. The former name is still read."""


_WITHOUT_EFFECT = (("model", "compile"), ("search", "short_passage_chars"), ("access", "short_page_chars"))
"""Retired settings that change no number of a run without `prompt.short_results`: a run folder may have any value."""


def as_written_then(saved: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run folder, with the defaults of the release that wrote it where they were others."""
    saved = with_names_of_today(saved)
    memory = saved.get("memory")
    if "evaluate" not in saved or not isinstance(memory, Mapping):  # not every setting: no run of ours wrote it
        return saved
    then = dict(_DEFAULTS_THEN)
    if isinstance(advantages := saved.get("advantages"), Mapping) and advantages.get("function"):
        del then["fade_batches"]  # an advantage function of the user's own leaves it nothing to do
    made = {**saved, "memory": {**then, **memory}}
    for section, gone in _WITHOUT_EFFECT:
        if isinstance(found := saved.get(section), Mapping):
            made[section] = {key: value for key, value in found.items() if key != gone}
    return made


def with_names_of_today(layer: Mapping[str, Any]) -> dict[str, Any]:
    """The same settings, those of `RENAMED` under their present names.

    Raises:
        ConfigError: one is given under both names.
    """
    found: dict[str, Any] = {}
    for section, value in layer.items():
        if isinstance(value, Mapping) and any(old.startswith(f"{section}.") for old in RENAMED):
            value = _renamed(value, f"{section}.")
        found[section] = value
    return _renamed(found, "")


def _renamed(settings: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in settings.items():
        key = RENAMED.get(f"{prefix}{name}", f"{prefix}{name}")
        if (new := key.removeprefix(prefix)) != name and new in settings:
            raise ConfigError(f"{prefix}{name} is called {key} now, and both are set; leave {prefix}{name} out")
        found[new] = value
    return found


def without_retired(settings: Mapping[str, Any], origins: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The same settings without retired ones. `origins`: by dotted key, where a value came from.

    Raises:
        ConfigError: a retired setting with another value than the constant that took its place.
    """
    return _without(settings, "", origins or {})


def _without(settings: Mapping[str, Any], prefix: str, origins: Mapping[str, str]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name, value in settings.items():
        key = f"{prefix}{name}"
        if (gone := RETIRED.get(key)) is not None:
            same = value == gone.constant and isinstance(value, bool) == isinstance(gone.constant, bool)
            if value is not None and not same:
                instead = f"; {gone.instead}" if gone.instead else ""
                where = f" [{origins[key]}]" if key in origins else ""
                raise ConfigError(f"{key} is not a setting any more, it is always {gone.constant!r}{instead}{where}")
        else:
            kept[name] = _without(value, f"{key}.", origins) if isinstance(value, Mapping) else value
    return kept
