"""The event loop that rollouts run on."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_loop(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` for many rollouts at once: on uvloop where that is installed, whose sockets cost less, and with
    everything that is there already (tokenizers, modules, a model: a million objects) out of the garbage collector's
    sight. Looking at those again takes it a tenth of a second, in which no rollout goes on."""
    gc.freeze()
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(main)
    finally:
        gc.unfreeze()


def _loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:  # there is none for Windows
        return None
    return uvloop.new_event_loop
