"""What uvicorn leaves open: how long a client may take for the head of a request, how long the head may be, and how
many connections there may be."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 1 << 16

_REFUSAL = b"HTTP/1.1 %b\r\nconnection: close\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n"


class GuardedProtocol(HttpToolsProtocol):
    """One connection. `head_s`: seconds from its begin, or from the first byte of a later request, to the end of the
    head; `most`: connections at once, of which later ones are refused."""

    def __init__(self, *args: Any, head_s: float, most: int, **more: Any) -> None:
        super().__init__(*args, **more)
        self._head_s, self._most = head_s, most
        self._head_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._most:
            self._refuse(b"503 Service Unavailable")
        else:
            self._expect_head()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():  # refused
            return
        super().data_received(data)
        if self._timer is None and (self.cycle is None or self.cycle.response_complete):
            self._expect_head()
        if self._timer is not None:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(b"431 Request Header Fields Too Large")

    def on_headers_complete(self) -> None:
        self._head_is_there()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_there()
        super().connection_lost(exc)

    def _expect_head(self) -> None:
        self._head_bytes = 0
        self._timer = self.loop.call_later(self._head_s, self._refuse, b"408 Request Timeout")

    def _head_is_there(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, status: bytes) -> None:
        self._head_is_there()
        if not self.transport.is_closing():
            self.transport.write(_REFUSAL % status)
            self.transport.close()
