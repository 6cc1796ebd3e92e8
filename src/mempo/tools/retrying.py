"""Bounded retries around a call that may fail because a server does."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from mempo.config.tools import RetrySettings
from mempo.interfaces import ToolErrorKind, ToolResult

T = TypeVar("T")


class Unavailable(Exception):
    """No attempt succeeded; the message is the last failure's."""


class BadCall(Exception):
    """The call itself was wrong; the message says how, in words for the policy."""


async def call_with_retries(call: Callable[[], T], settings: RetrySettings, threads: Executor | None = None) -> T:
    """Run a blocking `call` in a thread, again and again while it raises.

    An exception may say that another attempt is of no use (`transient` False) or how long to wait (`retry_after_s`).

    Raises:
        BadCall: as `call` raised it.
        Unavailable: after `settings.tries` attempts, or after one that cannot be mended by another.
    """
    loop = asyncio.get_running_loop()
    wait_s = settings.backoff_s
    for attempt in range(1, settings.tries + 1):
        try:
            return await loop.run_in_executor(threads, call)
        except BadCall:
            raise
        except Exception as error:
            if attempt == settings.tries or not getattr(error, "transient", True):
                tries = f"{attempt} tries failed; the last" if attempt > 1 else "1 try failed"
                raise Unavailable(f"{tries}: {type(error).__name__}: {error}") from error
            asked_s = getattr(error, "retry_after_s", None) or 0.0
        jittered_s = wait_s * (1 - settings.jitter * random.random())
        await asyncio.sleep(min(max(jittered_s, asked_s), settings.max_backoff_s))
        wait_s *= 2
    raise AssertionError("unreachable: tries >= 1")


def checked_argument(argument: str, name: str, max_chars: int) -> str | ToolResult:
    """What a call asks for, without NUL and outer white space; or the complaint that it is empty or too long."""
    text = argument.replace("\0", " ").strip()
    if not text:
        return bad_call(f"error: the {name} is empty")
    if len(text) > max_chars:
        return bad_call(f"error: the {name} has {len(text)} characters; at most {max_chars} are allowed")
    return text


def bad_call(notice: str) -> ToolResult:
    return ToolResult(notice=notice, error=ToolErrorKind.BAD_CALL)


def unavailable(error: Unavailable) -> ToolResult:
    return ToolResult(notice=f"error: the tool is not available ({error})", error=ToolErrorKind.UNAVAILABLE)
