"""A process that takes our place for a while."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any


def run_process(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a process, its output passed through. Signals that end us reach it too, and it is waited for, so that verl
    can close what it opened."""
    process = subprocess.Popen(list(arguments), env=dict(environment))

    def forward(number: int, _: Any) -> None:
        process.send_signal(number)

    before = signal.signal(signal.SIGTERM, forward)
    try:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:  # the terminal sent it to both
                continue
    finally:
        signal.signal(signal.SIGTERM, before)
