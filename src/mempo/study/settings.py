"""The file of a study: base, starts, arms and seeds. Settings in it are written KEY=VALUE, as on the command line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from mempo.config.base import Settings
from mempo.config.yaml_text import load_yaml
from mempo.errors import ConfigError, nearest

SHIPPED = files("mempo") / "recipes" / "studies"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")


def _as_overrides(value: Any) -> Any:
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or any(not isinstance(item, str) or "=" not in item for item in value):
        raise ValueError("write a list of KEY=VALUE, such as [rl.memory_signal=false]")
    return tuple(value)


def _as_seeds(value: Any) -> Any:
    if not isinstance(value, list | tuple) or not value or any(type(seed) is not int or seed < 0 for seed in value):
        raise ValueError(f"seeds are a list of whole numbers from 0, such as [0, 1, 2], not {value!r}")
    if len(set(value)) < len(value):
        raise ValueError(f"{list(value)} names a seed twice")
    return tuple(value)


Overrides = Annotated[tuple[str, ...], BeforeValidator(_as_overrides)]
Seeds = Annotated[tuple[int, ...], BeforeValidator(_as_seeds)]


class StartSettings(Settings):
    """One SFT start. A plain list of KEY=VALUE is short for `set`."""

    set: Overrides = ()
    """Settings of its SFT, and of everything that comes after it."""
    rl: Overrides = ()
    """Settings of the RL runs that begin from it alone, such as data.objectives=[6]."""
    sft_of: str | None = None
    """Do no SFT: take that of this other start."""
    sft_step: int | None = Field(default=None, ge=1)
    """With `sft_of`: the policy after so many steps of it instead of the last, for starts of growing strength."""

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, data: Any) -> Any:
        return {"set": data} if data is None or isinstance(data, list | tuple) else data

    @model_validator(mode="after")
    def _one_source(self) -> StartSettings:
        if self.sft_of and self.set:
            raise ValueError(f"sft_of takes the SFT of {self.sft_of}, so set would do nothing; write it under rl")
        if self.sft_step and not self.sft_of:
            raise ValueError("sft_step says which step of another start's SFT to take; name that start, sft_of: NAME")
        return self


class Longer(Settings):
    """What `--full` runs instead."""

    seeds: Seeds | None = None
    rl_seeds: Seeds | None = None


class Study(Settings):
    """Every arm from every start with every seed."""

    base: str
    """A recipe or YAML file that all runs build on."""
    set: Overrides = ()
    """Settings of all runs."""
    starts: dict[str, StartSettings] = Field(default_factory=lambda: {"start": StartSettings()})
    arms: dict[str, Overrides] = Field(min_length=1)
    """What is compared: settings of RL; an empty list is the base as it is."""
    baseline: str | None = None
    """The arm that the others are compared with; default: the first."""
    seeds: Seeds = (0,)
    """Seeds of the data, of SFT and of the evaluation: as many starts of each kind."""
    rl_seeds: Seeds | None = None
    """Seeds of RL, all of them on every start; default: one, that of the data."""
    full: Longer = Longer()

    @model_validator(mode="before")
    @classmethod
    def _named(cls, data: Any) -> Any:
        for kind in ("starts", "arms"):
            named = data.get(kind) if isinstance(data, Mapping) else None
            if named is not None and (not isinstance(named, Mapping) or not named):
                raise ValueError(f"{kind} are names with settings, such as {{plain: [], other: [rl.steps=9]}}")
            for name in named or ():
                if not isinstance(name, str) or not _NAME.fullmatch(name):
                    raise ValueError(f"{kind}: {name!r} is not a name; use letters, digits and . _ + -")
        return data

    @model_validator(mode="after")
    def _names_exist(self) -> Study:
        if self.baseline is not None and self.baseline not in self.arms:
            raise ValueError(f"baseline {self.baseline!r} is not an arm{nearest(self.baseline, self.arms)}")
        for name, start in self.starts.items():
            source = start.sft_of
            if source is None:
                continue
            if source not in self.starts or source == name:
                raise ValueError(f"starts: {name} takes the SFT of {source!r}, no other start{_near(source, self)}")
            if self.starts[source].sft_of:
                raise ValueError(
                    f"starts: {name} takes the SFT of {source}, which takes that of {self.starts[source].sft_of}; "
                    f"name {self.starts[source].sft_of} itself"
                )
        return self

    @property
    def compared_with(self) -> str:
        return self.baseline or next(iter(self.arms))

    def longer(self) -> Study:
        """The study with the seeds of `full`."""
        given = {name: value for name, value in self.full if value is not None}
        return self.model_copy(update=given)


def shipped_studies() -> list[str]:
    return sorted(entry.name.removesuffix(".yaml") for entry in SHIPPED.iterdir() if entry.name.endswith(".yaml"))


def read_study(source: str) -> tuple[str, Study]:
    """The name and the content of a study: a YAML file, or one that is shipped by its name.

    Raises:
        ConfigError: no such file, no YAML, or a key that is wrong; one line.
    """
    path = Path(source)
    if path.is_file():
        name = path.stem
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} cannot be read as text ({error})") from error
    elif source in shipped_studies():
        name, text = source, SHIPPED.joinpath(f"{source}.yaml").read_text("utf-8")
    else:
        known = shipped_studies()
        raise ConfigError(f"no study file {source!r}{nearest(source, known)}; shipped: {', '.join(known)}")
    try:
        return name, Study.model_validate(load_yaml(text, source))
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, problem['loc'])) or 'study'}: {problem['msg'].removeprefix('Value error, ')}"
            for problem in error.errors()
        ]
        raise ConfigError(f"{source}: {'; '.join(dict.fromkeys(problems))}") from error


def _near(word: str, study: Study) -> str:
    return nearest(word, study.starts)
