"""What can go wrong with a corpus, an index folder or a retrieval server, each told in one message."""

from __future__ import annotations

from typing import Literal

from mempo.errors import UserError

FailureKind = Literal["refused", "timeout", "status", "not_json", "schema"]

BODY_HEAD_BYTES = 200


class CorpusError(UserError):
    """A corpus file that cannot be used: missing, empty, a broken line, two documents with one id, changed on disk."""


class IndexFolderError(UserError):
    """An index folder that cannot be used: incomplete, of an unknown kind, or made from another corpus."""


class RetrievalError(UserError):
    """A request to a retrieval server that failed for good, after all tries.

    `kind`: `refused` (no connection, or one that broke off), `timeout`, `status` (an HTTP status other than 2xx),
    `not_json`, `schema` (JSON of another shape than asked for). `url` is the address asked; `status` the HTTP status,
    None when there was no reply; `body_head` the first 200 bytes of the reply, escaped to printable ASCII.
    """

    def __init__(self, kind: FailureKind, url: str, status: int | None, body_head: str, reason: str) -> None:
        reply = "no reply" if status is None else f"status {status}, first bytes: {body_head or '(empty body)'}"
        super().__init__(f"retrieval server {url}: {reason} [{kind}; {reply}]")
        self.kind: FailureKind = kind
        self.url = url
        self.status = status
        self.body_head = body_head
        self.reason = reason

    def __reduce__(self) -> tuple[type[RetrievalError], tuple[FailureKind, str, int | None, str, str]]:
        # Otherwise only the message would cross to another process, and its constructor would fail there.
        return RetrievalError, (self.kind, self.url, self.status, self.body_head, self.reason)


def body_head(body: bytes) -> str:
    """The first bytes of a reply as printable ASCII: a reply of any bytes is safe to log."""
    return ascii(body[:BODY_HEAD_BYTES])[2:-1]
