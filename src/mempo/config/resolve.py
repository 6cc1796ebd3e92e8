"""From a recipe, a YAML file and `key=value` to one configuration that knows where every value came from.

Later sources win: defaults, the recipe that a file builds on (`recipe: quickstart`), the file, the command line.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mempo.config.base import leaves, long_form
from mempo.config.check import check
from mempo.config.explain import explain, shortened
from mempo.config.overrides import merge, parse_override
from mempo.config.retired import as_written_then, with_names_of_today, without_retired
from mempo.config.rewards import PRESETS, MemorySettings
from mempo.config.schema import Config
from mempo.config.yaml_text import dump_flow, load_yaml, read_yaml
from mempo.errors import ConfigError, nearest

RECIPES = files("mempo") / "recipes"
BUILDS_ON = "recipe"
"""The key of a file that names what it builds on: a recipe, or another file, relative to its own folder."""

Layer = tuple[str, dict[str, Any]]
"""Where settings come from, and what is said there."""


@dataclass(frozen=True)
class Resolved:
    """A configuration, and for every leaf (dotted key) where its value came from."""

    config: Config
    origins: Mapping[str, str]

    def plain(self) -> dict[str, Any]:
        """As plain data, ready for YAML or JSON."""
        return self.config.model_dump(mode="json")


def completed(saved: Mapping[str, Any]) -> Mapping[str, Any]:
    """The plain data of a configuration that an earlier release may have written: settings that it did not have are at
    their defaults, retired ones are left out. What this release cannot read, or none has written, comes back as it
    is."""
    if not isinstance(saved, Mapping) or not {"output", "seed", "model", "data", "agent", "limits"} <= saved.keys():
        return saved
    try:
        return Config.model_validate(without_retired(as_written_then(saved))).model_dump(mode="json")
    except (ValidationError, TypeError, ConfigError):
        return saved


def recipe_names() -> list[str]:
    return sorted(entry.name.removesuffix(".yaml") for entry in RECIPES.iterdir() if entry.name.endswith(".yaml"))


def resolve(source: str | None, overrides: Sequence[str] = ()) -> Resolved:
    """Make a configuration from a recipe name, a YAML file or a run folder (None: only the defaults) and `key=value`
    overrides. The result has `config`, a `Config`, and says where each value came from.

    Raises:
        ConfigError: a file or key does not exist, a value has the wrong type, or settings contradict each other.
    """
    layers = [] if source is None else _read_source(source)
    layers += [("command line", parse_override(override)) for override in overrides]
    if any(BUILDS_ON in layer for _, layer in layers):
        raise ConfigError(f"{BUILDS_ON} is the first word of the command, or a key of a YAML file; it is not a setting")
    layers = [(origin, long_form(Config, with_names_of_today(layer))) for origin, layer in layers]
    merged: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for origin, layer in layers:
        if merged and layers[0][0].startswith("run "):  # it holds every setting, those that follow from others too
            _forget_followers(merged, layer)
        merge(merged, layer)
        for key, _ in leaves(layer):
            origins = {k: v for k, v in origins.items() if not k.startswith(f"{key}.")}
            origins[key] = origin
    try:
        config = Config.model_validate(without_retired(merged, origins))
    except ValidationError as error:
        text = explain(error, Config, layers)
        raise ConfigError(text if source is None or "[" in text else f"{source}: {text}") from error
    check(config)
    every = dict.fromkeys((key for key, _ in leaves(config.model_dump(mode="json"))), "default")
    preset = config.memory.preset
    every.update({f"memory.{key}": f"preset {preset}" for key, _ in leaves(PRESETS[preset])})
    every.update({key: origin for key in every if (origin := _origin(key, origins))})
    return Resolved(config, every)


def _forget_followers(saved: dict[str, Any], layer: Mapping[str, Any]) -> None:
    """Take out of a saved configuration what followed from its preset, where `layer` asks for another preset."""
    memory = saved.get("memory") or {}
    old = memory.get("preset", "recommended")
    new = (layer.get("memory") or {}).get("preset", old)
    if new != old and old in PRESETS:
        was = MemorySettings(preset=old).model_dump(mode="json")
        for key in {key for preset in PRESETS.values() for key in preset} - {"probe"}:
            if memory.get(key) == was[key]:
                memory.pop(key, None)
        probe = memory.get("probe") or {}
        if probe.get("separators_are_gold") == was["probe"]["separators_are_gold"]:
            probe.pop("separators_are_gold", None)


def dump_with_origins(resolved: Resolved) -> str:
    """YAML with a comment on every leaf: where its value came from."""
    lines: list[str] = []

    def walk(data: Mapping[str, Any], prefix: str, indent: int) -> None:
        for key, value in data.items():
            name = f"{prefix}{key}"
            if isinstance(value, Mapping) and value:
                lines.append(f"{'  ' * indent}{key}:")
                walk(value, f"{name}.", indent + 1)
            else:
                origin = resolved.origins.get(name, "default")
                lines.append(f"{'  ' * indent}{dump_flow(key)}: {dump_flow(value)}  # {origin}")

    walk(resolved.plain(), "", 0)
    return "\n".join(lines) + "\n"


# --- sources -------------------------------------------------------------------------------------------------------


def _read_source(source: str) -> list[Layer]:
    """The layers of a source, what it builds on first."""
    path = Path(source)
    if source in recipe_names():
        return [recipe_layer(source)]
    if os.path.isfile(path):
        return _read_file(path, ())
    file = path / "config.yaml"
    if os.path.isdir(path) and os.path.lexists(file):
        return [(f"run {path}", _of_run(path, file))]
    names = recipe_names()
    raise ConfigError(f"no recipe or file {shortened(source)}{nearest(source, names)}; recipes: {', '.join(names)}")


def _of_run(path: Path, file: Path) -> dict[str, Any]:
    """What a run was begun with; a run is where it is found, whatever it was called then.

    Raises:
        ConfigError: the file is damaged, or its end is missing: with fewer settings it would be another run.
    """
    remedy = "put the right file back from a copy"
    try:
        text = file.read_text("utf-8")
        found = load_yaml(text, "it")
    except (OSError, UnicodeDecodeError, ConfigError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{file} is damaged ({reason}); {remedy}") from error
    if not found:
        raise ConfigError(f"{file} is damaged (it holds no settings); {remedy}")
    is_run = any((path / name).exists() for name in ("data.json", "metrics.jsonl", "checkpoints"))
    is_ours = is_run or (path / "identity.json").exists()  # of an evaluation
    if is_ours and (not text.endswith("\n") or ("output" in found and "evaluate" not in found)):
        raise ConfigError(f"{file} is damaged (its end is missing); {remedy}")
    return {**as_written_then(found), "output": str(path)} if is_run else found


def recipe_layer(name: str) -> Layer:
    return f"recipe {name}", load_yaml(RECIPES.joinpath(f"{name}.yaml").read_text("utf-8"), f"recipe {name}")


def _read_file(path: Path, above: tuple[Path, ...]) -> list[Layer]:
    """A file's own layer after those of what it builds on. `above`: the files that were read on the way here."""
    if path.resolve() in above:
        raise ConfigError(f"{path} builds on itself; take out one {BUILDS_ON}: of {', '.join(map(str, above))}")
    own = read_yaml(path)
    if BUILDS_ON not in own:
        return [(str(path), own)]
    base = own.pop(BUILDS_ON)
    if isinstance(base, str) and base in recipe_names():
        origin, layer = recipe_layer(base)
        below = [(origin, layer)]
    elif isinstance(base, str) and os.path.isfile(file := path.parent / base):
        below = _read_file(file, (*above, path.resolve()))
    else:
        names = recipe_names()
        raise ConfigError(
            f"{path}: {BUILDS_ON} is {base!r}, no recipe{nearest(str(base), names)} and no file beside this one; "
            f"recipes: {', '.join(names)}"
        )
    return [*((f"{origin} (through {path})", layer) for origin, layer in below), (str(path), own)]


def _origin(key: str, origins: Mapping[str, str]) -> str | None:
    """The origin of a key, or of a shorter key that stood for it (`reward: module:function`)."""
    parts = key.split(".")
    return next((origins[name] for n in range(len(parts), 0, -1) if (name := ".".join(parts[:n])) in origins), None)
