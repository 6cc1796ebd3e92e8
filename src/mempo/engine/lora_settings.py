"""Settings of low-rank adapters."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from mempo.settings import Settings


class LoraSettings(Settings):
    """Low-rank adapters (LoRA, arXiv 2106.09685): W + (alpha / rank) B A is used, and only A and B are trained."""

    rank: int = Field(default=16, ge=1)
    alpha: float = Field(default=32.0, gt=0, allow_inf_nan=False)
    """The adapter's product counts alpha / rank times."""
    dropout: float = 0.0
    """Must stay 0: the policy that is updated has to be the one that sampled."""
    targets: Literal["all-linear"] | tuple[str, ...] = "all-linear"
    """Names of the layers that get one (q_proj, v_proj, …); `all-linear` means every linear layer but the head."""

    @field_validator("dropout")
    @classmethod
    def _no_dropout(cls, value: float) -> float:
        if value != 0:
            raise ValueError(
                f"dropout {value:g} would make the updated policy another one than the policy that sampled; leave 0"
            )
        return value

    @field_validator("targets")
    @classmethod
    def _some(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        if not value:
            raise ValueError("targets names no layer; leave it at all-linear, or name some, as [q_proj, v_proj]")
        return value
