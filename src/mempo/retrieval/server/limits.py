"""What one request, and all that wait together, may ask of the service."""

from __future__ import annotations

from typing import Any


class RefusedRequest(Exception):
    """A request that gets no answer. `status` and `error` are the reply's; see `error_body`."""

    def __init__(self, status: int, kind: str, message: str, retry_after_s: int | None = None, **facts: Any) -> None:
        super().__init__(message)
        self.status = status
        self.error = {"kind": kind, "message": message, **facts}
        self.retry_after_s = retry_after_s


def over_limit(status: int, limit: str, given: int | None, allowed: int) -> RefusedRequest:
    """`given` is None when nobody counted to the end."""
    so_many = "more" if given is None else str(given)
    message = f"{limit} is {allowed}, the request has {so_many}"
    return RefusedRequest(status, "limit", message, limit=limit, given=given, allowed=allowed)
