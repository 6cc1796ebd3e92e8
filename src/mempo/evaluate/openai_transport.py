"""HTTP/1.1 under httpx for many small requests at once: one write, one parse, one wake-up for each.

The transport that httpx brings costs a request about four times as much, which at 64 rollouts in flight is more than a
quick server takes to answer. Replies are read whole; connections are kept and taken again.
"""

from __future__ import annotations

import asyncio
import ssl
import time

import httptools
import httpx

KEPT_S = 4.0
"""Many servers hang up after 5 idle seconds: a connection is given up before, not while a request is on its way."""


class DirectTransport(httpx.AsyncBaseTransport):
    """Of one event loop, without proxies. A body is read up to `max_bytes` and a little more, then broken off.

    Raises the errors of httpx: ConnectError, ConnectTimeout, RemoteProtocolError.
    """

    def __init__(self, context: ssl.SSLContext, connect_s: float, max_bytes: int) -> None:
        self._context, self._connect_s, self._max_bytes = context, connect_s, max_bytes
        self._idle: list[_Connection] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        connection = self._kept() or await self._open(request.url)
        try:
            head = b"".join(b"%b: %b\r\n" % header for header in request.headers.raw)
            line = b"%b %b HTTP/1.1\r\n" % (request.method.encode("ascii"), request.url.raw_path)
            reply = await connection.exchange(line + head + b"\r\n" + request.content, self._max_bytes)
        except BaseException:
            connection.close()
            raise
        if connection.is_open:
            self._idle.append(connection)
        return httpx.Response(reply.status, headers=reply.headers, content=bytes(reply.body))

    async def aclose(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    def _kept(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and time.monotonic() - connection.used < KEPT_S:
                return connection
            connection.close()
        return None

    async def _open(self, url: httpx.URL) -> _Connection:
        secure = url.scheme == "https"
        port = url.port or (443 if secure else 80)
        try:
            async with asyncio.timeout(self._connect_s):
                _, connection = await asyncio.get_running_loop().create_connection(
                    _Connection, url.host, port, ssl=self._context if secure else None
                )
        except TimeoutError:
            raise httpx.ConnectTimeout("") from None
        except OSError as error:
            raise httpx.ConnectError(str(error)) from None
        return connection


class _Reply:
    """One message, as the parser finds it."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = bytearray()
        self.ends_by_itself = False


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self.is_open = False
        self.used = time.monotonic()
        self._waiter: asyncio.Future[_Reply] | None = None

    async def exchange(self, message: bytes, max_bytes: int) -> _Reply:
        self._waiter = asyncio.get_running_loop().create_future()
        self._reply, self._max_bytes = _Reply(), max_bytes
        self._parser = httptools.HttpResponseParser(self)
        if not self.is_open:
            raise httpx.RemoteProtocolError("the server hung up")
        self._transport.write(message)
        return await self._waiter

    def close(self) -> None:
        self.is_open = False
        self._transport.abort()

    # --- called by asyncio -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport, self.is_open = transport, True

    def data_received(self, data: bytes) -> None:
        if self._waiter is None or self._waiter.done():
            return self.close()  # nothing was asked
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(httpx.RemoteProtocolError(f"the reply is not HTTP ({error})"))

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if self._waiter is None or self._waiter.done():
            return
        if self._reply.status >= 200 and self._reply.ends_by_itself is False and exc is None:
            self._waiter.set_result(self._reply)  # a body without a length ends with the connection
        else:
            self._fail(httpx.RemoteProtocolError(f"the server hung up ({exc})" if exc else "the server hung up"))

    # --- called by the parser --------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        self._reply.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._reply.status = self._parser.get_status_code()
        names = {name.lower() for name, _ in self._reply.headers}
        self._reply.ends_by_itself = bool(names & {b"content-length", b"transfer-encoding"})

    def on_body(self, body: bytes) -> None:
        self._reply.body += body
        if len(self._reply.body) > self._max_bytes:
            self._finish(keep=False)

    def on_message_complete(self) -> None:
        if self._reply.status < 200:  # 100 Continue: the reply is yet to come
            self._reply = _Reply()
        else:
            self._finish(keep=self._parser.should_keep_alive())

    def _finish(self, keep: bool) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(self._reply)
        self.used = time.monotonic()
        if not keep:
            self.close()

    def _fail(self, error: httpx.HTTPError) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)
        self.close()
