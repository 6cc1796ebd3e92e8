"""Bounded retries around a call that may fail because a server does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from mempo.config.tools import RetrySettings
from mempo.http.retry import retried
from mempo.rollout.interfaces import ToolErrorKind, ToolResult

T = TypeVar("T")


class Unavailable(Exception):
    """No attempt succeeded; the message is the last failure's."""


class BadCall(Exception):
    """The call itself was wrong; the message says how, in words for the policy. `transient`: another try may help,
    as with a site that the policy chose and that does not answer."""

    def __init__(self, message: str, transient: bool = False) -> None:
        super().__init__(message)
        self.transient = transient


async def call_with_retries(call: Callable[[], T], settings: RetrySettings, threads: Executor | None = None) -> T:
    """Run a blocking `call` in a thread, again and again while it raises.

    An exception may say that another attempt is of no use (`transient` False) or how long to wait (`retry_after_s`).

    Raises:
        BadCall: as the last `call` raised it.
        Unavailable: after `settings.tries` attempts, or after one that cannot be fixed by another.
    """
    loop, tries = asyncio.get_running_loop(), 0

    async def attempt() -> T:
        nonlocal tries
        tries += 1
        return await loop.run_in_executor(threads, call)

    try:
        return await retried(attempt, settings)
    except BadCall:
        raise
    except Exception as error:
        told = f"{tries} tries failed; the last" if tries > 1 else "1 try failed"
        raise Unavailable(f"{told}: {type(error).__name__}: {error}") from error


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
