"""Timing two or more things alternately in one run, so that a noisy machine is noisy for all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping


def alternate(ways: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """CPU-seconds of every way, `[rounds]` each, taken in turns; one round before that warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            began = time.process_time()
            way()
            if number:
                seconds[name].append(time.process_time() - began)
    return seconds


def ratio(some: list[float], base: list[float]) -> tuple[float, float, float]:
    """Median of the rounds' own ratios, and the smallest and largest of them."""
    each = [a / b for a, b in zip(some, base, strict=True)]
    return statistics.median(each), min(each), max(each)
