"""What can go wrong with a corpus, an index folder or a retrieval server, each told in one message."""

from __future__ import annotations

from typing import Literal

from mempo.errors import UserError

FailureKind = Literal["refused", "timeout", "status", "not_json", "schema"]

BODY_HEAD_BYTES = 200

RETRIED_STATUSES = frozenset({500, 502, 503, 504})


class CorpusError(UserError):
    """A corpus file that cannot be used: missing, empty, a broken line, two documents with one id, changed on disk."""


class IndexFolderError(UserError):
    """An index folder that cannot be used: incomplete, of an unknown kind, or made from another corpus."""


class RetrievalError(UserError):
    """A request to a retrieval server that failed for good, after all tries.

    `kind`: `refused` (no connection, or one that broke off), `timeout`, `status` (an HTTP status other than 2xx),
    `not_json`, `schema` (JSON of another shape than asked for). `url` is the address asked; `status` the HTTP status,
    None when there was no reply; `body_head` the first 200 bytes of the reply, escaped to printable ASCII;
    `retry_after_s` the wait that a server which is too busy asked for.
    """

    def __init__(
        self,
        kind: FailureKind,
        url: str,
        status: int | None,
        body_head: str,
        reason: str,
        retry_after_s: float | None = None,
    ) -> None:
        reply = "no reply" if status is None else f"status {status}, first bytes: {body_head or '(empty body)'}"
        super().__init__(f"retrieval server {url}: {reason} [{kind}; {reply}]")
        self.kind: FailureKind = kind
        self.url = url
        self.status = status
        self.body_head = body_head
        self.reason = reason
        self.retry_after_s = retry_after_s

    @property
    def transient(self) -> bool:
        """Whether asking again may help: a server that is down, busy or behind a proxy that says so in HTML."""
        return self.kind in ("refused", "timeout", "not_json") or self.status in RETRIED_STATUSES

    def __reduce__(self) -> tuple[type[RetrievalError], tuple[FailureKind, str, int | None, str, str, float | None]]:
        # Otherwise only the message would cross to another process, and its constructor would fail there.
        return RetrievalError, (self.kind, self.url, self.status, self.body_head, self.reason, self.retry_after_s)


def body_head(body: bytes) -> str:
    """The first bytes of a reply as printable ASCII: a reply of any bytes is safe to log."""
    return ascii(body[:BODY_HEAD_BYTES])[2:-1]
