"""A server on loopback that is as good or as bad as it is told: in front of another one, or answering by itself.

It reads whole requests, takes the good reply to each, and hands it to the fault of the moment, which writes to the
client whatever it likes. `FAULTS` names the ways of servers that fail.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

Answer = Callable[["Request"], Awaitable[bytes]]
"""The whole good reply to a request, head and body."""
Act = Callable[["Exchange"], Awaitable[None]]


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    head: bytes
    body: bytes


@dataclass(frozen=True)
class Exchange:
    """A request, the good reply to it, and the client that waits. `over` is set when faults end."""

    request: Request
    reply: bytes
    writer: asyncio.StreamWriter
    over: asyncio.Event

    @property
    def body(self) -> bytes:
        return self.reply.partition(b"\r\n\r\n")[2]

    async def send(self, *parts: bytes) -> None:
        for part in parts:
            self.writer.write(part)
            await self.writer.drain()

    async def wait(self, seconds: float | None = None) -> bool:
        """Whether faults are over, now or within so many seconds."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.over.wait(), seconds)
        return self.over.is_set()


@dataclass(frozen=True)
class Fault:
    """`act` None: nobody listens. What it must lead to: `late`, no whole reply within the deadline; `failed`, a failure
    at once; `unread`, a failure for those who want JSON, a text for those who want text; `none`, the right reply."""

    leads_to: Literal["late", "failed", "unread", "none"]
    act: Act | None


def reply(body: bytes, status: str = "200 OK", *headers: str, length: int | None = None) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body) if length is None else length}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def says(*parts: bytes, close: bool = True) -> Act:
    """Whatever was asked; `close`: and hangs up."""

    async def act(exchange: Exchange) -> None:
        await exchange.send(*parts)
        if close:
            exchange.writer.close()

    return act


def _drips(start: bytes, drop: bytes) -> Act:
    async def act(exchange: Exchange) -> None:
        await exchange.send(start)
        while not await exchange.wait(0.02):
            await exchange.send(drop)
        exchange.writer.close()

    return act


def _json(value: Any) -> Act:
    return says(reply(json.dumps(value).encode(), "200 OK", "content-type: text/plain"), close=False)


async def _silent(exchange: Exchange) -> None:
    await exchange.wait()
    exchange.writer.close()


async def _reset(exchange: Exchange) -> None:
    own: socket.socket = exchange.writer.get_extra_info("socket")
    own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    exchange.writer.transport.abort()


async def _half_then_silent(exchange: Exchange) -> None:
    await exchange.send(exchange.reply[: -len(exchange.body) // 2])
    await _silent(exchange)


async def _half(exchange: Exchange) -> None:
    await exchange.send(exchange.reply[: -(len(exchange.body) // 2)])
    exchange.writer.close()


async def _too_long(exchange: Exchange) -> None:
    await exchange.send(reply(exchange.body, length=len(exchange.body) + 1000))
    exchange.writer.close()


async def _too_short(exchange: Exchange) -> None:
    """What follows the length belongs to no request, and may not be taken for the next reply."""
    await exchange.send(reply(exchange.body, "200 OK", "content-type: text/html", length=len(exchange.body) - 3))


async def _half_a_chunk(exchange: Exchange) -> None:
    await exchange.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nff\r\n", exchange.body[:20])
    exchange.writer.close()


async def _twice(exchange: Exchange) -> None:
    await exchange.send(exchange.reply, reply(b'{"result": [], "choices": [], "organic": []}'))


async def _slowly(exchange: Exchange) -> None:
    for start in range(0, len(exchange.reply), 40):
        await exchange.send(exchange.reply[start : start + 40])
        await asyncio.sleep(0.001)


async def _loops(exchange: Exchange) -> None:
    await exchange.send(reply(b"", "307 Temporary Redirect", f"location: {exchange.request.path}"))


def _dated(*headers: str) -> Act:
    async def act(exchange: Exchange) -> None:
        head, _, body = exchange.reply.partition(b"\r\n\r\n")
        await exchange.send(head + "".join(f"\r\n{header}" for header in headers).encode() + b"\r\n\r\n" + body)

    return act


_FUTURE, _PAST = "Fri, 01 Jan 2100 00:00:00 GMT", "Thu, 01 Jan 1970 00:00:00 GMT"
_CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
_DEEP = b"[" * 100_000

FAULTS: dict[str, Fault] = {
    "refuses": Fault("failed", None),
    "hangs up": Fault("failed", says()),
    "resets": Fault("failed", _reset),
    "is silent": Fault("late", _silent),
    "drips its status": Fault("late", _drips(b"HTTP/1.1 200 O", b"K")),
    "drips headers": Fault("late", _drips(b"HTTP/1.1 200 OK\r\n", b"x-a: b\r\n")),
    "drips one header": Fault("late", _drips(b"HTTP/1.1 200 OK\r\nx-a: ", b"b")),
    "drips a body": Fault("late", _drips(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n", b" ")),
    "drips chunks": Fault("late", _drips(_CHUNKED, b"1\r\n \r\n")),
    "drips after an error": Fault("late", _drips(b"HTTP/1.1 500 No\r\ncontent-length: 100000\r\n\r\n", b" ")),
    "drips interim replies": Fault("late", _drips(b"", b"HTTP/1.1 100 Continue\r\n\r\n")),
    "half a body, then silence": Fault("late", _half_then_silent),
    "half a body": Fault("failed", _half),
    "half a chunk": Fault("failed", _half_a_chunk),
    "a length that is too long": Fault("failed", _too_long),
    "a length that is too short": Fault("failed", _too_short),
    "no HTTP": Fault("failed", says(b"SSH-2.0-OpenSSH_9.6\r\n")),
    "a page of HTML": Fault("unread", says(reply(b"<html>starting</html>", "200 OK", "content-type: text/html"))),
    "half of a JSON": Fault("unread", says(reply(b'{"result": [[{"te', "200 OK", "content-type: text/plain"))),
    "JSON in no UTF-8": Fault("unread", says(reply(b'{"result": "\xff"}', "200 OK", "content-type: text/plain"))),
    "JSON without end": Fault("unread", says(reply(_DEEP, "200 OK", "content-type: text/plain"))),
    "nothing": Fault("failed", says(reply(b""))),
    "JSON of another shape": Fault("unread", _json({"result": 5, "choices": {}, "organic": 5, "data": None})),
    "JSON with nothing in it": Fault("unread", _json({})),
    "a list": Fault("unread", _json([1])),
    "HTTP 500": Fault("failed", says(reply(b"<html>500</html>", "500 Oops"))),
    "HTTP 404": Fault("failed", says(reply(b"{}", "404 Not Found"))),
    "a redirect elsewhere": Fault("failed", says(reply(b"", "302 Found", "location: http://127.0.0.1:9/"))),
    "a redirect to itself": Fault("failed", _loops),
    "busy until 2100": Fault("failed", says(reply(b"", "503 Busy", f"retry-after: {_FUTURE}", f"date: {_FUTURE}"))),
    "busy for years": Fault("failed", says(reply(b"", "429 Slow Down", "retry-after: 999999999"))),
    "a clock in 2100": Fault("none", _dated(f"date: {_FUTURE}", f"expires: {_PAST}")),
    "a clock in 1970": Fault("none", _dated(f"date: {_PAST}", "age: 999999999")),
    "a second reply": Fault("none", _twice),
    "small pieces": Fault("none", _slowly),
}


def sometimes(*shares: tuple[str, float], seed: int = 0, hits: Counter[str] | None = None) -> Fault:
    """Those of `FAULTS` for a share of the requests each, at random; `hits` counts them."""
    rng = random.Random(seed)

    async def act(exchange: Exchange) -> None:
        draw = rng.random()
        for name, share in shares:
            draw -= share
            act = FAULTS[name].act
            if draw < 0 and act is not None:
                if hits is not None:
                    hits[name] += 1
                await act(exchange)
                return
        await exchange.send(exchange.reply)

    return Fault("none", act)


class FaultProxy:
    """`fault` holds from the next request on, None: there is none. `requests` counts those that arrived whole."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._fault: Fault | None = None
        self._over = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.requests = 0
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def fault(self) -> Fault | None:
        return self._fault

    @fault.setter
    def fault(self, fault: Fault | None) -> None:
        refuses = fault is not None and fault.act is None
        if refuses and self._server is not None:
            self.stop()
        elif not refuses and self._server is None:
            self.start()
        self._fault = fault
        if fault is None:
            self._loop.call_soon_threadsafe(self._end_faults)

    def start(self) -> None:
        """Listen, on the port it had before."""

        async def begin() -> None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
            self.port = self._server.sockets[0].getsockname()[1]

        asyncio.run_coroutine_threadsafe(begin(), self._loop).result(30)

    def stop(self) -> None:
        """As a server that is killed: its connections break off, and nobody listens."""

        async def end() -> None:
            assert self._server is not None
            self._server.close()
            self._server = None
            self._end_faults()
            for task in (under_way := list(self._connections)):
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(30)

    def close(self) -> None:
        if self._server is not None:
            self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _end_faults(self) -> None:
        self._over.set()
        self._over = asyncio.Event()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while (request := await _read(reader)) is not None:
                self.requests += 1
                exchange = Exchange(request, await self._answer(request), writer, self._over)
                if self._fault is not None and self._fault.act is not None:
                    await self._fault.act(exchange)
                else:
                    await exchange.send(exchange.reply)
                if writer.is_closing():
                    return
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(task)
            writer.close()


async def _read(reader: asyncio.StreamReader) -> Request | None:
    """A request; None where the client hangs up instead."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    lines = head.decode("latin-1").split("\r\n")
    lengths = [line.partition(":")[2] for line in lines if line.lower().startswith("content-length:")]
    method, path, _ = lines[0].split(" ", 2)
    return Request(method, path, head, await reader.readexactly(int(lengths[0])) if lengths else b"")


def forward(url: str) -> Answer:
    """What the server at `url` answers, over a connection for each request."""
    address = urlsplit(url)

    async def answer(request: Request) -> bytes:
        async with _connected(address.hostname or "", address.port or 80) as (reader, writer):
            first, _, rest = request.head.partition(b"\r\n")
            writer.write(first + b"\r\nconnection: close\r\n" + rest + request.body)
            found = await reader.read()
        return found.replace(b"connection: close\r\n", b"", 1)

    return answer


@asynccontextmanager
async def _connected(host: str, port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        yield reader, writer
    finally:
        writer.close()


@contextmanager
def faulty(answer: Answer | None = None) -> Iterator[FaultProxy]:
    """A proxy that answers every protocol of mempo's clients with "Paris", unless it is told otherwise."""
    proxy = FaultProxy(answer or every_protocol)
    try:
        yield proxy
    finally:
        proxy.close()


async def every_protocol(request: Request) -> bytes:
    """A good reply to any client of mempo."""
    body = json.loads(request.body) if request.body[:1] == b"{" else {}
    row = {"id": "1", "contents": '"Paris"\nthe capital'}
    path = urlsplit(request.path).path
    if path == "/retrieve":
        return _good({"result": [[row] for _ in body["queries"]]})
    if path == "/access":
        return _good({"result": [row for _ in body["urls"]]})
    if path == "/search":
        return _good({"organic": [{"title": "Paris", "link": "http://a.test/", "snippet": "the capital"}]})
    if path.endswith("/chat/completions"):
        verdict = {"content": '{"verdict": "correct"}'}
        return _good({"choices": [{"message": verdict, "finish_reason": "stop"}]})
    if path.endswith("/completions"):
        return _good({"choices": [{"text": "Paris", "finish_reason": "stop"}], "usage": {"completion_tokens": 2}})
    if path.endswith("/models"):
        return _good({"data": [{"id": "Paris"}]})
    page = "<html><title>Paris</title><body><p>Paris is the capital of France, and has been for long.</p></body></html>"
    return reply(page.encode(), "200 OK", "content-type: text/html")


def _good(value: Any) -> bytes:
    return reply(json.dumps(value).encode(), "200 OK", "content-type: application/json")
