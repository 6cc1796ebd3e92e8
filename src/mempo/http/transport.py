"""HTTP/1.1 for many small requests at once: one write, one parse, one wake-up for each.

A general HTTP client costs a request about four times as much, which at 64 rollouts in flight is more than a quick
server takes to answer. Replies are read whole; connections are kept and taken again. Where the environment names a
proxy, `ProxiedConnections` do the same over httpx.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import httptools
import httpx

from mempo.http.threads import DaemonThreads

KEPT_S = 4.0
"""Many servers hang up after 5 idle seconds: a connection is given up before, not while a request is on its way."""
MAX_HEAD_BYTES = 1 << 16
"""Status line and headers of a reply; trailers count as well."""


class Reply:
    """A reply as it came. `is_cut`: its body is longer than was allowed, and only its beginning is here."""

    __slots__ = ("body", "headers", "is_cut", "status")

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes, is_cut: bool) -> None:
        self.status, self.headers, self.body, self.is_cut = status, headers, body, is_cut


class Connections(Protocol):
    """The connections of one event loop. `send` raises ConnectError, ConnectTimeout and RemoteProtocolError of httpx;
    it has no time-out for the reply."""

    async def send(self, method: str, url: str, content: bytes | None) -> Reply: ...

    async def aclose(self) -> None: ...


Resolver = Callable[[str, int], Sequence[str]]
"""From host and port to IP addresses, in the order in which they are tried. May block: it runs in a thread."""

RESOLVING = DaemonThreads(32, "mempo-resolve")


def system_addresses(host: str, port: int) -> Sequence[str]:
    """A Resolver that asks the system. Raises OSError, and UnicodeError for a name that cannot be one."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a url is: `host` in ASCII, `origin` its scheme, host and port."""

    origin: tuple[str, str, int]
    is_secure: bool
    host: str
    port: int
    path: bytes
    netloc: bytes


class DirectConnections:
    """`headers` go with every request. A body is read up to `max_bytes` and a little more, then broken off.

    `resolve` says which addresses a host has; whatever it raises but OSError and ValueError is the caller's. `keep`
    False: every request has a connection of its own.
    """

    def __init__(
        self,
        headers: Mapping[str, str],
        context: ssl.SSLContext,
        connect_s: float,
        max_bytes: int,
        resolve: Resolver = system_addresses,
        keep: bool = True,
    ) -> None:
        # A server may compress when nothing is said.
        lines = {"accept-encoding": "identity", **({} if keep else {"connection": "close"}), **headers}.items()
        self._headers = b"".join(b"%b: %b\r\n" % (name.encode("ascii"), value.encode("ascii")) for name, value in lines)
        self._context, self._connect_s, self._max_bytes = context, connect_s, max_bytes
        self._resolve, self._keep = resolve, keep
        self._places: dict[str, _Place] = {}
        self._idle: dict[tuple[str, str, int], list[_Connection]] = {}

    async def send(self, method: str, url: str, content: bytes | None) -> Reply:
        place = self._places.get(url) or self._place(url)
        connection = self._kept(place) or await self._open(place)
        head = b"%b %b HTTP/1.1\r\nhost: %b\r\n%b" % (method.encode(), place.path, place.netloc, self._headers)
        length = b"\r\n" if content is None else b"content-length: %d\r\n\r\n%b" % (len(content), content)
        try:
            found = await connection.exchange(head + length, self._max_bytes)
        except BaseException:
            connection.close()
            raise
        if not self._keep:
            connection.close()
        elif connection.is_open:
            self._idle.setdefault(place.origin, []).append(connection)
        body, is_cut = found.body, len(found.body) > self._max_bytes
        if (coding := found.headers.get("content-encoding", "")) and not is_cut:
            body, is_cut = decoded(body, coding, self._max_bytes)
        return Reply(found.status, found.headers, bytes(body), is_cut)

    async def aclose(self) -> None:
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()

    def _place(self, url: str) -> _Place:
        address = httpx.URL(url)
        is_secure = address.scheme == "https"
        host, port = address.raw_host.decode("ascii"), address.port or (443 if is_secure else 80)
        origin = (address.scheme, host, port)
        place = _Place(origin, is_secure, host, port, address.raw_path, address.netloc)
        if self._keep:  # else every request goes somewhere else
            self._places[url] = place
        return place

    def _kept(self, place: _Place) -> _Connection | None:
        idle = self._idle.get(place.origin)
        while idle:
            connection = idle.pop()
            if connection.is_open and time.monotonic() - connection.used < KEPT_S:
                return connection
            connection.close()
        return None

    async def _open(self, place: _Place) -> _Connection:
        try:
            async with asyncio.timeout(self._connect_s):
                return await self._connected(place)
        except TimeoutError:
            raise httpx.ConnectTimeout("") from None
        except (OSError, ValueError) as error:
            raise httpx.ConnectError(str(error)) from error

    async def _connected(self, place: _Place) -> _Connection:
        """A connection to the first address of the host that takes one."""
        loop = asyncio.get_running_loop()
        secure: dict[str, Any] = {"ssl": self._context, "server_hostname": place.host} if place.is_secure else {}
        failure = OSError("the host has no address")
        addresses: Sequence[str] = (place.host,)
        if self._resolve is not system_addresses or not place.host.replace(".", "").isdigit():
            # Not the loop's own look-up: its threads would keep the process from ending.
            addresses = await loop.run_in_executor(RESOLVING, self._resolve, place.host, place.port)
        for address in addresses:
            try:
                _, connection = await loop.create_connection(_Connection, address, place.port, **secure)
                return connection
            except ssl.SSLCertVerificationError:
                raise
            except OSError as error:
                failure = error
        raise failure


class ProxiedConnections:
    """The same through the proxy that the environment names."""

    def __init__(self, headers: Mapping[str, str], context: ssl.SSLContext, max_bytes: int, most: int) -> None:
        limits = httpx.Limits(max_connections=most, max_keepalive_connections=most, keepalive_expiry=KEPT_S)
        self._client = httpx.AsyncClient(
            headers=dict(headers), timeout=None, verify=context, limits=limits, follow_redirects=False
        )
        self._max_bytes = max_bytes

    async def send(self, method: str, url: str, content: bytes | None) -> Reply:
        async with self._client.stream(method, url, content=content) as response:
            parts, size = list[bytes](), 0
            async for part in response.aiter_bytes():
                parts.append(part)
                size += len(part)
                if size > self._max_bytes:
                    break
        return Reply(response.status_code, response.headers, b"".join(parts), size > self._max_bytes)

    async def aclose(self) -> None:
        await self._client.aclose()


def decoded(body: bytes | bytearray, coding: str, max_bytes: int) -> tuple[bytes, bool]:
    """A gzipped or deflated body as it was, and whether it was longer than `max_bytes`, to which it is cut: a few
    kilobytes can hold gigabytes. Other codings stay as they are. Raises RemoteProtocolError for what is none."""
    if coding.strip().lower() not in ("gzip", "x-gzip", "deflate"):
        return bytes(body), False
    try:
        found = zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise httpx.RemoteProtocolError(f"the reply cannot be unpacked ({error})") from None
    return found[:max_bytes], len(found) > max_bytes


class _Found:
    """One message, as the parser finds it."""

    __slots__ = ("body", "ends_by_itself", "head_bytes", "headers", "status")

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.head_bytes = 0
        self.body = bytearray()
        self.ends_by_itself = False


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self.is_open = False
        self.used = time.monotonic()
        self._waiter: asyncio.Future[_Found] | None = None
        self._parser = httptools.HttpResponseParser(self)  # of one reply after another

    async def exchange(self, message: bytes, max_bytes: int) -> _Found:
        self._waiter = asyncio.get_running_loop().create_future()
        self._found, self._max_bytes = _Found(), max_bytes
        if not self.is_open:
            raise httpx.RemoteProtocolError("the server hung up")
        self._transport.write(message)
        return await self._waiter

    def close(self) -> None:
        self.is_open = False
        self._transport.abort()

    # --- called by asyncio -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Those of uvloop have the methods of this class without being of it.
        self._transport, self.is_open = cast(asyncio.Transport, transport), True

    def data_received(self, data: bytes) -> None:
        if self._waiter is None or self._waiter.done():  # nothing was asked
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(httpx.RemoteProtocolError(f"the reply is not HTTP ({error})"))
            return
        if not self._found.status:
            self._found.head_bytes += len(data)  # also of a header that has not ended
            self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if self._waiter is None or self._waiter.done():
            return
        if self._found.status >= 200 and not self._found.ends_by_itself and exc is None:
            self._waiter.set_result(self._found)  # a body without a length ends with the connection
        else:
            self._fail(httpx.RemoteProtocolError(f"the server hung up ({exc})" if exc else "the server hung up"))

    # --- called by the parser --------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._waiter is not None and self._waiter.done():  # a second reply to one request
            self._found = _Found()
            self.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        headers = self._found.headers
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
        if self._found.status:  # a trailer
            self._found.head_bytes += len(name) + len(value)
            self._watch_head()

    def on_headers_complete(self) -> None:
        self._found.status = self._parser.get_status_code()
        self._found.ends_by_itself = not self._found.headers.keys().isdisjoint(("content-length", "transfer-encoding"))

    def on_body(self, body: bytes) -> None:
        self._found.body += body
        if len(self._found.body) > self._max_bytes:
            self._finish(keep=False)

    def on_message_complete(self) -> None:
        if self._found.status < 200:  # 100 Continue: the reply is yet to come
            head_bytes = self._found.head_bytes
            self._found = _Found()
            self._found.head_bytes = head_bytes + 1
            self._watch_head()
        else:
            self._finish(keep=self._parser.should_keep_alive())

    def _watch_head(self) -> None:
        if self._found.head_bytes > MAX_HEAD_BYTES:
            self._fail(httpx.RemoteProtocolError(f"the head of the reply is longer than {MAX_HEAD_BYTES} bytes"))

    def _finish(self, keep: bool) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(self._found)
        self.used = time.monotonic()
        if not keep:
            self.close()

    def _fail(self, error: httpx.HTTPError) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)
        self.close()
