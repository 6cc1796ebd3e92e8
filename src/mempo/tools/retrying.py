"""Bounded retries around a call that may fail because a server does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from pydantic import Field

from mempo.interfaces import ToolErrorKind, ToolResult
from mempo.settings import Settings

T = TypeVar("T")


class RetrySettings(Settings):
    """How often a failing tool is asked again, and how long to wait."""

    tries: int = Field(default=5, ge=1)
    """Attempts in all, the first included."""
    backoff_s: float = Field(default=0.5, ge=0)
    """Wait before the second attempt; doubled each time."""
    max_backoff_s: float = Field(default=8.0, ge=0)


class Unavailable(Exception):
    """Every attempt failed; the message is the last failure's."""


async def call_with_retries(call: Callable[[], T], settings: RetrySettings) -> T:
    """Run a blocking `call` in a thread, again and again while it raises.

    Raises:
        Unavailable: after `settings.tries` attempts.
    """
    wait_s = settings.backoff_s
    for attempt in range(1, settings.tries + 1):
        try:
            return await asyncio.to_thread(call)
        except Exception as error:
            if attempt == settings.tries:
                raise Unavailable(
                    f"{settings.tries} tries failed; the last: {type(error).__name__}: {error}"
                ) from error
        await asyncio.sleep(min(wait_s, settings.max_backoff_s))
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
