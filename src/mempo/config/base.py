"""The base of all settings: frozen, and unknown keys are refused with the nearest known one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, model_validator

from mempo.config.unused import unused
from mempo.errors import nearest


def is_import_path(name: str) -> bool:
    """Whether a value is the user's own object by import path, `package.module:name`."""
    return ":" in name


class Settings(BaseModel):
    """A part of a configuration; `schema.py` composes them."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, use_attribute_docstrings=True, allow_inf_nan=False
    )

    short_forms: ClassVar[Mapping[str, str]] = {}
    """Sections that a text alone may stand for, and the key of theirs that it means."""

    @model_validator(mode="before")
    @classmethod
    def _write_out_short_forms(cls, data: Any) -> Any:
        return long_form(cls, data) if isinstance(data, Mapping) else data

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for key in data:
                if key not in cls.model_fields:
                    raise ValueError(f"unknown key {key!r}{nearest(str(key), cls.model_fields)}")
        return data

    @model_validator(mode="before")
    @classmethod
    def _keep_what_the_default_says(cls, data: Any) -> Any:
        """Some keys of a group of settings, such as `optim: {lr: …}` of a stage, leave the others as the stage has
        them, not as the group has them elsewhere."""
        if not isinstance(data, dict):
            return data
        defaults = {
            name: cls.model_fields[name].default.model_dump(exclude_unset=True)
            for name, value in data.items()
            if isinstance(value, dict)
            and name in cls.model_fields
            and isinstance(cls.model_fields[name].default, Settings)
        }
        return {**data, **{name: {**kept, **data[name]} for name, kept in defaults.items() if kept}}

    @model_validator(mode="after")
    def _refuse_unused(self) -> Self:
        if sentence := unused(self):
            raise ValueError(sentence)
        return self


def long_form(kind: type[Settings], layer: Mapping[str, Any]) -> dict[str, Any]:
    """`reward: module:function` written out, so that it meets the other keys of `reward` and replaces none of them."""
    short = kind.short_forms
    return {
        key: {short[key]: value} if key in short and isinstance(value, str) else value for key, value in layer.items()
    }


def leaves(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """`(dotted key, value)` of nested settings; an empty section is a leaf."""
    for key, value in data.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
