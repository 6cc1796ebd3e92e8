"""What can go wrong between mempo and a model server, each told in one message that holds no key."""

from __future__ import annotations

import re
from typing import Literal

from mempo.retrieval.errors import body_head

FailureKind = Literal["refused", "timeout", "status", "not_json", "schema"]

RETRIED_STATUSES = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})

_BEARER = re.compile(r"(?i)(bearer\s+)[^\s\"',}]+")
HIDDEN = "[key]"
_LOOKED_AT_BYTES = 1 << 14
_SHORTEST_SECRET = 4
"""Placeholders such as `x` are no secret, and taking them out would spoil every message."""


class ServerError(Exception):
    """A request that failed. The message names the address, the status where there was a reply, and its first bytes.

    `kind`: `refused` (no connection, or one that broke off), `timeout`, `status` (an HTTP status other than 2xx),
    `not_json`, `schema` (JSON of another shape than asked for). `retry_after_s`: the wait the server asked for.
    """

    def __init__(
        self,
        kind: FailureKind,
        url: str,
        reason: str,
        status: int | None = None,
        body: bytes = b"",
        key: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        head = body_head(without_key(body, key))
        reply = "no reply" if status is None else f"status {status}, first bytes: {head or '(empty body)'}"
        told = without_key(reason.encode(errors="replace"), key).decode(errors="replace")
        super().__init__(f"model server {url}: {told} [{kind}; {reply}]")
        self.kind: FailureKind = kind
        self.url = url
        self.status = status
        self.retry_after_s = retry_after_s

    @property
    def transient(self) -> bool:
        """Whether asking again may help."""
        return self.kind in ("refused", "timeout", "not_json") or self.status in RETRIED_STATUSES

    @property
    def is_denied(self) -> bool:
        """The key is missing or wrong: every other request will fail as this one did."""
        return self.status in (401, 403)


def without_key(text: bytes, key: str | None) -> bytes:
    """The beginning of the text with the key, and whatever else follows `Bearer`, replaced: servers echo what they
    were sent."""
    text = text[:_LOOKED_AT_BYTES]
    if key and len(key) >= _SHORTEST_SECRET:
        for written in (key, key.replace("/", "\\/")):  # as some servers write it in JSON
            text = text.replace(written.encode(), HIDDEN.encode())
    return _BEARER.sub(lambda match: match.group(1) + HIDDEN, text.decode("latin-1")).encode("latin-1")
