"""What can go wrong between mempo and a server, told in one message that names the server."""

from __future__ import annotations

from typing import Literal

from mempo.errors import UserError

FailureKind = Literal["refused", "timeout", "status", "not_json", "schema"]

BODY_HEAD_BYTES = 200

RETRIED_STATUSES = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})


class HttpError(UserError):
    """A request that failed. The message names the server, the status where there was a reply, and its first bytes.

    `service`: what was asked, such as `model server`. `kind`: `refused` (no connection, or one that broke off),
    `timeout`, `status` (an HTTP status other than 2xx), `not_json`, `schema` (JSON of another shape than asked for).
    `url` is the address asked; `status` the HTTP status, None when there was no reply; `body_head` the first 200 bytes
    of the reply, escaped to printable ASCII; `retry_after_s` the wait that the server asked for.
    """

    def __init__(
        self,
        service: str,
        kind: FailureKind,
        url: str,
        reason: str,
        status: int | None = None,
        body_head: str = "",
        retry_after_s: float | None = None,
    ) -> None:
        reply = "no reply" if status is None else f"status {status}, first bytes: {body_head or '(empty body)'}"
        super().__init__(f"{service} {url}: {reason} [{kind}; {reply}]")
        self.service = service
        self.kind: FailureKind = kind
        self.url = url
        self.reason = reason
        self.status = status
        self.body_head = body_head
        self.retry_after_s = retry_after_s

    @property
    def transient(self) -> bool:
        """Whether asking again may help: a server that is down, busy or behind a proxy that says so in HTML."""
        return self.kind in ("refused", "timeout", "not_json") or self.status in RETRIED_STATUSES

    @property
    def is_denied(self) -> bool:
        """The key is missing or wrong: every other request will fail as this one did."""
        return self.status in (401, 403)

    def __reduce__(self) -> tuple[type[HttpError], tuple[str, FailureKind, str, str, int | None, str, float | None]]:
        # Otherwise only the message would cross to another process, and its constructor would fail there.
        told = (self.service, self.kind, self.url, self.reason, self.status, self.body_head, self.retry_after_s)
        return HttpError, told


def body_head(body: bytes) -> str:
    """The first bytes of a reply as printable ASCII: a reply of any bytes is safe to log."""
    return ascii(body[:BODY_HEAD_BYTES])[2:-1]
