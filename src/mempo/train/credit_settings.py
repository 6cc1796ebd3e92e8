"""Settings of the advantages, `credit.*`."""

from __future__ import annotations

from pydantic import Field

from mempo.settings import Settings

EPS = 1e-6


class CreditSettings(Settings):
    normalize_std: bool = True
    """Divide by the group's standard deviation; off is the Dr. GRPO variant (mean only)."""
    eps: float = Field(default=EPS, gt=0, allow_inf_nan=False)
    """Added to the standard deviation."""
    function: str | None = None
    """`package.module:function` that makes the advantages instead of the formulas here, from an `AdvantageBatch`
    (docs/extending.md)."""
