"""Settings of the advantages, `credit.*`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mempo.settings import Settings

EPS = 1e-6


class CreditSettings(Settings):
    normalize_std: bool = True
    """Divide by the group's standard deviation; off is the Dr. GRPO variant (mean only)."""
    eps: float = Field(default=EPS, gt=0, allow_inf_nan=False)
    """Added to the standard deviation."""
    baseline: Literal["group", "state"] | None = None
    """What a score is compared with: the mean score of the group; or, on each turn, that of the rollouts of the group
    which came through the same state (the same prompt). None: `state` with `memory.preset: state`, else `group`."""
    function: str | None = None
    """`package.module:function` that makes the advantages instead of the formulas here, from an `AdvantageBatch`
    (docs/extending.md)."""
