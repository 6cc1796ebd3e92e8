"""What both tools do around a call: a check of the argument, threads, retries, and a memory of what was found."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from mempo.config.tools import RetrySettings
from mempo.http.threads import DaemonThreads
from mempo.rollout.interfaces import ToolResult
from mempo.tools.retrying import BadCall, Unavailable, bad_call, call_with_retries, checked_argument, unavailable

T = TypeVar("T")


class Calls:
    """Calls of one tool by many rollouts, at most `max_concurrent` at once.

    What was found is remembered, `remembered` results of it: neither a corpus nor, for one run, a page changes.
    Failures are not.
    """

    def __init__(self, retry: RetrySettings, max_concurrent: int, remembered: int) -> None:
        self._retry = retry
        self._threads = DaemonThreads(max_concurrent, "mempo-tool")
        self._remembered = remembered
        self._results: dict[str, ToolResult] = {}

    async def result(
        self, argument: str, name: str, max_chars: int, find: Callable[[str], T], show: Callable[[T], ToolResult]
    ) -> ToolResult:
        """`show(find(argument))`, or what was wrong with the call or with the server. `name` is the argument's."""
        text = checked_argument(argument, name, max_chars)
        if isinstance(text, ToolResult):
            return text
        if text in self._results:
            return self._results[text]
        try:
            found = await call_with_retries(lambda: find(text), self._retry, self._threads)
        except Unavailable as error:
            return unavailable(error)
        except BadCall as error:
            return bad_call(f"error: {error}")
        result = show(found)
        if result.error is None and len(self._results) < self._remembered:
            self._results[text] = result
        return result
