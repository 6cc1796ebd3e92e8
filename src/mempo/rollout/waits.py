"""A watchdog: says which rollout waits for whom when it has waited for long. Deadlines are the clients' own.

A wait is known to whatever runs on its behalf (it is a context variable), so a client can add which server it asks.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextvars import ContextVar, Token
from types import TracebackType
from urllib.parse import urlsplit

SLOW_S = 60.0
"""Seconds after which a wait is told, and between two lines: of many rollouts that wait, the longest speaks."""

log = logging.getLogger(__name__)
_current: ContextVar[Waiting | None] = ContextVar("waiting", default=None)
_under_way: set[Waiting] = set()
_told_at = -SLOW_S


class Waiting:
    """A rollout waits for `what` within the block. What never asks a server and is `local` is not told: it computes."""

    def __init__(self, question_id: str, rollout: int, turn: int, what: str, local: bool = False) -> None:
        self._who, self._what, self._local = (question_id, rollout, turn), what, local
        self._asked: tuple[str, str] | None = None
        self._requests = 0

    def __enter__(self) -> None:
        self.began = time.monotonic()
        self._token: Token[Waiting | None] = _current.set(self)
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(SLOW_S, self._tell)
        _under_way.add(self)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        _under_way.discard(self)
        self._timer.cancel()
        _current.reset(self._token)

    def asks(self, service: str, url: str) -> None:
        self._asked = service, url
        self._requests += 1

    def is_slow(self, now: float) -> bool:
        return now - self.began >= SLOW_S and not (self._local and self._asked is None)

    def line(self, now: float, others: int) -> str:
        question, rollout, turn = self._who
        told = f"question {question!r}, rollout {rollout}, turn {turn + 1} has waited {now - self.began:.0f} s for "
        told += self._what
        if self._asked is not None:
            parts = urlsplit(self._asked[1])
            told += f": {self._asked[0]} at {parts.scheme}://{parts.netloc}, request {self._requests}"
        return told + (f"; {others} more wait as long" if others else "")

    def _tell(self) -> None:
        global _told_at
        now = time.monotonic()
        slow = sorted((wait for wait in tuple(_under_way) if wait.is_slow(now)), key=lambda wait: wait.began)
        if slow and now - _told_at >= SLOW_S:
            _told_at = now
            log.warning(slow[0].line(now, len(slow) - 1))
        self._timer = self._loop.call_later(SLOW_S, self._tell)


def asking(service: str, url: str) -> None:
    """Told by a client as it sends a request, on behalf of whoever waits."""
    if (wait := _current.get()) is not None:
        wait.asks(service, url)
