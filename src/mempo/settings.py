"""The base of all settings: frozen, and unknown keys are refused with the nearest known one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from mempo.errors import nearest


class Settings(BaseModel):
    """Each room owns its settings as a subclass; `config.py` only composes them."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,  # an address may hold a password
    )

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


def leaves(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """`(dotted key, value)` of nested settings; an empty section is a leaf."""
    for key, value in data.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
