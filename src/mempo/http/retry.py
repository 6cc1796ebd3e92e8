"""The one retry policy: how often, and how long to wait in between."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar

from mempo.config.tools import RetrySettings

T = TypeVar("T")

ONCE = RetrySettings(tries=1)
JITTER = 0.5
"""The largest share of a wait that is left out at random, so that clients that failed together do not come back so."""


async def retried(
    attempt: Callable[[], Awaitable[T]], policy: RetrySettings, failure: type[Exception] = Exception
) -> T:
    """`attempt()` again and again while it raises `failure`; raises the last one.

    An exception may say that another attempt is of no use (`transient` False) or how long to wait (`retry_after_s`).
    """
    wait_s = policy.backoff_s
    for left in range(policy.tries - 1, -1, -1):
        try:
            return await attempt()
        except failure as error:
            if not left or not getattr(error, "transient", True):
                raise
            asked_s = getattr(error, "retry_after_s", None) or 0.0
        await asyncio.sleep(pause_s(wait_s, asked_s, policy))
        wait_s *= 2
    raise AssertionError("unreachable: tries >= 1")


def pause_s(backoff_s: float, asked_s: float, policy: RetrySettings) -> float:
    """Seconds until the next try: the back-off less a random part, or longer where the server asked for it."""
    jittered_s = backoff_s * (1 - JITTER * random.random())
    return min(max(jittered_s, asked_s), policy.max_backoff_s)


def retry_after_s(header: str | None, now: datetime | None = None) -> float | None:
    """Seconds to wait, from either form of the Retry-After header; None when there is none or it cannot be read."""
    text = (header or "").strip()
    if text.isascii() and text.replace(".", "", 1).isdigit():
        return float(text)
    try:
        until = parsedate_to_datetime(text)
        until = until if until.tzinfo else until.replace(tzinfo=UTC)
        return max(0.0, (until - (now or datetime.now(UTC))).total_seconds())
    except (ValueError, OverflowError):
        return None
