"""Timing two or more things alternately in one run, so that a noisy machine is noisy for all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import torch


def clock(device: str | torch.device = "cpu") -> float:
    """CPU-seconds of this process; on a GPU, seconds by the wall once it has finished what it was given."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


def alternate(
    ways: Mapping[str, Callable[[], object]], rounds: int, device: str | torch.device = "cpu", warm_up: bool = True
) -> dict[str, list[float]]:
    """Seconds (see `clock`) of every way, `[rounds]` each, taken in turns; one round before that warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(not warm_up, rounds + 1):
        for name, way in ways.items():
            began = clock(device)
            way()
            if number:
                seconds[name].append(clock(device) - began)
    return seconds


def ratio(some: Sequence[float], base: Sequence[float]) -> tuple[float, float, float]:
    """Median of the rounds' own ratios, and the smallest and largest of them."""
    each = [a / b for a, b in zip(some, base, strict=True)]
    return statistics.median(each), min(each), max(each)


def spread(numbers: tuple[float, float, float], unit: str = "") -> str:
    """`median (smallest–largest)`."""
    middle, low, high = numbers
    return f"{middle:.2f}{unit} ({low:.2f}–{high:.2f})"
