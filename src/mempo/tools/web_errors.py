"""What can go wrong on the web, in one message, and whether another try may help."""

from __future__ import annotations

from mempo.retrieval.errors import RETRIED_STATUSES

_RETRIED = RETRIED_STATUSES | {408, 429}


class WebError(Exception):
    """A request that failed; the message names the address, the status where there was a reply, and its first bytes.

    `transient`: another try may help. `retry_after_s`: the wait that the server asked for.
    """

    def __init__(self, url: str, reason: str, transient: bool, retry_after_s: float | None = None) -> None:
        super().__init__(f"{url}: {reason}")
        self.url = url
        self.reason = reason
        self.transient = transient
        self.retry_after_s = retry_after_s


def is_retried(status: int) -> bool:
    return status in _RETRIED
