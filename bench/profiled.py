"""Where the time of something goes: in torch by operation, and in Python by function."""

from __future__ import annotations

import cProfile
import io
import pstats
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity


def profile(way: Callable[[], object], rows: int = 14) -> str:
    """Two tables: operations of torch by their own CPU time, and functions of Python by theirs."""
    way()
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
    with torch.profiler.profile(activities=activities) as torch_side:
        way()
    events = sorted(torch_side.key_averages(), key=lambda event: -event.self_cpu_time_total)
    total = sum(event.self_cpu_time_total for event in events)
    lines = [f"{'operation':44} {'share':>6} {'ms':>9} {'calls':>7}"]
    for event in events[:rows]:
        share, ms = event.self_cpu_time_total / total, event.self_cpu_time_total / 1000
        lines.append(f"{event.key[:44]:44} {share:6.1%} {ms:9.1f} {event.count:7}")
    python_side = cProfile.Profile()
    python_side.runcall(way)
    text = io.StringIO()
    pstats.Stats(python_side, stream=text).strip_dirs().sort_stats("tottime").print_stats(rows)
    table = text.getvalue().split("ncalls", 1)[-1]
    return "\n".join([*lines, "", f"   ncalls{table.rstrip()}"])
