"""Small statistics in which None is "not known" and never 0."""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np

from mempo.rewards.rollout_metrics import mean
from mempo.storage.files import dump_line

__all__ = ["correlation_within", "finite", "mean", "pearson", "ratio", "std"]


def ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def std(values: Sequence[float]) -> float | None:
    """Unbiased (n - 1); None for fewer than two."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def finite(value: Any) -> Any:
    """Plain data as it comes back from a file: no NaN, no infinity, no tuples, keys as text, no lone surrogates."""
    return json.loads(dump_line(value).encode("utf-8", "replace"))


def correlation_within(
    pools: Iterable[Hashable], xs: Iterable[float | None], ys: Iterable[float | None]
) -> tuple[float | None, int]:
    """Pearson's r of x and y after taking the mean of its pool from each, and the number of pairs it rests on.

    So what differs between pools (how hard a question is, which turn it is) cannot make a correlation. Pairs with a
    None and pools of one are left out; None where x or y does not vary within any pool.
    """
    by_pool: dict[Hashable, list[tuple[float, float]]] = {}
    for pool, x, y in zip(pools, xs, ys, strict=True):
        if x is not None and y is not None:
            by_pool.setdefault(pool, []).append((x, y))
    pooled = [np.asarray(pairs, dtype=np.float64) for pairs in by_pool.values() if len(pairs) > 1]
    count = sum(map(len, pooled))
    if count < 3:
        return None, count
    x, y = (np.concatenate([_centred(pairs[:, column]) for pairs in pooled]) for column in (0, 1))
    return pearson(x, y), count


def pearson(x: np.ndarray, y: np.ndarray) -> float | None:
    """None where one side does not vary."""
    if len(x) < 2:
        return None
    x, y = _centred(x), _centred(y)
    scale = math.sqrt(float(x @ x)) * math.sqrt(float(y @ y))
    return max(-1.0, min(1.0, float(x @ y) / scale)) if scale > 1e-15 else None


def _centred(values: np.ndarray) -> np.ndarray:
    # The mean of equal floats need not be that float.
    return values - values.mean() if len(set(values.tolist())) > 1 else np.zeros(len(values))
