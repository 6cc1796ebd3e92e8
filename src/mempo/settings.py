"""The base of all settings: frozen, and unknown keys are refused with the nearest known one."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from mempo.errors import nearest


class Settings(BaseModel):
    """Each room owns its settings as a subclass; `config.py` only composes them."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for key in data:
                if key not in cls.model_fields:
                    raise ValueError(f"unknown key {key!r}{nearest(str(key), cls.model_fields)}")
        return data
