"""What both tools do around a call: a check of the argument, threads, retries, and a memory of what was found."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from mempo.config.tools import RetrySettings
from mempo.http.retry import retried
from mempo.http.threads import DaemonThreads
from mempo.rollout.interfaces import ToolErrorKind, ToolResult

T = TypeVar("T")


class BadCall(Exception):
    """The call itself was wrong; the message says how, in words for the policy. `transient`: another try may help,
    as with a site that the policy chose and that does not answer."""

    def __init__(self, message: str, transient: bool = False) -> None:
        super().__init__(message)
        self.transient = transient


def bad_call(reason: object) -> ToolResult:
    return ToolResult(notice=f"error: {reason}", error=ToolErrorKind.BAD_CALL)


class Calls:
    """Calls of one tool by many rollouts, at most `max_concurrent` at once, each in a thread and tried again as `retry`
    says.

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
        text = argument.replace("\0", " ").strip()
        if not text:
            return bad_call(f"the {name} is empty")
        if len(text) > max_chars:
            return bad_call(f"the {name} has {len(text)} characters; at most {max_chars} are allowed")
        if text in self._results:
            return self._results[text]
        tries = 0

        async def attempt() -> T:
            nonlocal tries
            tries += 1
            return await asyncio.get_running_loop().run_in_executor(self._threads, find, text)

        try:
            found = await retried(attempt, self._retry)
        except BadCall as error:
            return bad_call(error)
        except Exception as error:  # whatever a retriever of the user's raises
            told = f"{tries} tries failed; the last" if tries > 1 else "1 try failed"
            notice = f"error: the tool is not available ({told}: {type(error).__name__}: {error})"
            return ToolResult(notice=notice, error=ToolErrorKind.UNAVAILABLE)
        result = show(found)
        if result.error is None and len(self._results) < self._remembered:
            self._results[text] = result
        return result
