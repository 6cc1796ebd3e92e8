"""Ending on a signal: SIGTERM, which clusters send, does what Ctrl-C does.

The work saves what is done and ends with one line and the conventional exit code; a second signal ends the process at
once.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from mempo.errors import UserError

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """The first signal. A `KeyboardInterrupt`, which event loops and libraries pass on to whoever started them."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


_not_now: list[Callable[[], bool]] = []
_waiting: list[int] = []


@contextlib.contextmanager
def not_while(half_done: Callable[[], bool]) -> Iterator[None]:
    """Within the block a first signal that comes while `half_done()` is true waits for `stop_if_asked`."""
    _not_now.append(half_done)
    try:
        yield
    finally:
        _not_now.remove(half_done)


def stop_if_asked() -> None:
    """Raises Stopped: a signal has waited for this moment."""
    if _waiting:
        raise Stopped(_waiting.pop())


@contextlib.contextmanager
def quiet_interrupt() -> Iterator[None]:
    """Ctrl-C where nothing listens for it (before a command has begun, after it has ended) ends the process with the
    conventional code and without a trace, whatever a library that was interrupted makes of it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen: list[int] = []

    def stop(number: int, _: FrameType | None) -> None:
        seen.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        if seen or isinstance(error, KeyboardInterrupt):
            raise SystemExit(128 + signal.SIGINT) from None
        raise
    finally:
        if signal.getsignal(signal.SIGINT) is stop:  # else the process is ending, and another one may still hurry it
            signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def stoppable(standing: Callable[[], str]) -> Iterator[None]:
    """Within the block the first SIGINT or SIGTERM raises `Stopped` in the main thread, so that whoever is at work
    saves what is done; the second has its default effect, at once. A block that was stopped ends the process with 128
    and the signal's number, and one line that says what `standing()` tells: what is saved and how to go on.

    A library may turn it into an error of its own, as an import that is interrupted does; that ends the block alike.

    In another thread, which may not handle signals, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, _: FrameType | None) -> None:
        for other in SIGNALS:
            signal.signal(other, signal.SIG_DFL)
        if any(half_done() for half_done in _not_now):
            _waiting.append(number)
        else:
            raised.append(Stopped(number))
            raise raised[0]

    raised: list[Stopped] = []
    before = {number: signal.signal(number, stop) for number in SIGNALS}
    was_stopped = False
    try:
        yield
    except (Exception, Stopped) as error:
        if isinstance(error, Stopped):
            raised.append(error)
        if not raised or isinstance(error, UserError):
            raise
        was_stopped, stopped = True, raised[0]
        print(f"mempo: stopped by {stopped}; {standing()}", file=sys.stderr, flush=True)
        raise SystemExit(128 + stopped.number) from None
    finally:
        _waiting.clear()
        if not was_stopped:  # else the process is ending, and another signal may still hurry it
            for number, handler in before.items():
                signal.signal(number, handler)
