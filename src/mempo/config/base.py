"""The base of all settings: frozen, and unknown keys are refused with the nearest known one."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from mempo.config.unused import unused
from mempo.errors import nearest

UNKNOWN_KEY = "unknown_key"
"""The type of the error of a key that no setting has."""


def is_import_path(name: str) -> bool:
    """Whether a value is the user's own object by import path, `package.module:name`."""
    return ":" in name


class Settings(BaseModel):
    """A part of a configuration; `schema.py` composes them."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,  # an address may hold a password
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
                    nested = "; write dotted keys as nested ones" if "." in str(key) else ""
                    hint = nested or nearest(str(key), cls.model_fields)
                    raise PydanticCustomError(
                        UNKNOWN_KEY, "unknown key {shown}{hint}", {"key": key, "shown": repr(key), "hint": hint}
                    )
        return data

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_what_would_be_read_as_something_else(cls, value: Any, info: ValidationInfo) -> Any:
        """True is no 1, `yes` no truth value, and a number beyond 64 bits none that a machine counts with."""
        if (text := _unwritable(value)) is not None:
            raise ValueError(f"{text!r} cannot be written into a configuration: it holds NUL, or is not Unicode text")
        kinds = _scalar_kinds(cls, str(info.field_name))
        for item in value if isinstance(value, list | tuple) else [value]:
            if isinstance(item, bool) and bool not in kinds and kinds & {int, float}:
                raise ValueError(f"{str(item).lower()} is not a number")
            if isinstance(item, int) and kinds & {int, float} and abs(item) >= 1 << 63:
                raise ValueError(f"the number has {len(str(item))} digits; that is more than can be counted to")
            if isinstance(item, str) and bool in kinds and str not in kinds:
                raise ValueError("write true or false")
        return value

    @field_validator("*", mode="after")
    @classmethod
    def _refuse_what_stands_twice(cls, value: Any) -> Any:
        if isinstance(value, tuple):
            twice = next((item for n, item in enumerate(value) if item in value[:n]), None)
            if twice is not None:
                raise ValueError(f"{twice!r} is given twice; name it once")
        return value

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


def _unwritable(value: Any) -> str | None:
    """A text in `value` that no file, path or JSON could hold: NUL, or bytes of an argument that are no UTF-8."""
    if isinstance(value, str):
        return value if "\0" in value or any("\ud800" <= char <= "\udfff" for char in value) else None
    if isinstance(value, Mapping):
        value = (*value.keys(), *value.values())
    if isinstance(value, list | tuple):
        return next((text for item in value if (text := _unwritable(item)) is not None), None)
    return None


@cache
def _scalar_kinds(cls: type[Settings], name: str) -> frozenset[Any]:
    """The types of single values that a field may hold, those in a list too."""
    left, found = [cls.model_fields[name].annotation], set()
    while left:
        kind = left.pop()
        inner = [part for part in typing.get_args(kind) if part is not Ellipsis]
        if typing.get_origin(kind) is typing.Literal:
            found |= {type(part) for part in inner}
        elif inner:
            left += inner
        else:
            found.add(kind)
    return frozenset(found)


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
