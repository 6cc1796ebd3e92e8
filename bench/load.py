"""Clients that cost little: HTTP/1.1 over kept connections, each sending its next request when the last is answered."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import uvloop


@dataclass(frozen=True)
class Measured:
    """Of one round: requests per second and the milliseconds from sending to the last byte."""

    per_second: float
    p50_ms: float
    p99_ms: float


def measure(port: int, queries: Sequence[str], clients: int, top_k: int = 3) -> Measured:
    """Every query once, one a request, by so many clients at a time.

    Raises RuntimeError for a status other than 200, OSError when nobody listens.
    """
    bodies = [json.dumps({"queries": [q], "topk": top_k, "return_scores": True}).encode() for q in queries]
    head = b"POST /retrieve HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
    requests = iter([head % (len(body), body) for body in bodies])
    waits_s: list[float] = []

    async def all_clients() -> float:
        loop = asyncio.get_running_loop()
        made = [_Client(requests, waits_s, loop.create_future()) for _ in range(clients)]
        begun = time.perf_counter()
        for client in made:
            await loop.create_connection(lambda client=client: client, "127.0.0.1", port)
        await asyncio.gather(*(client.done for client in made))
        return time.perf_counter() - begun

    seconds = uvloop.run(all_clients())
    waits_s.sort()
    place = len(waits_s) - 1
    return Measured(len(waits_s) / seconds, 1e3 * waits_s[place // 2], 1e3 * waits_s[int(place * 0.99)])


class _Client(asyncio.Protocol):
    """Streams would cost the client as much as a quick server needs."""

    def __init__(self, requests: Iterator[bytes], waits_s: list[float], done: asyncio.Future[None]) -> None:
        self.done = done
        self._requests = requests
        self._waits_s = waits_s
        self._reply = b""
        self._begun = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._send()

    def data_received(self, data: bytes) -> None:
        self._reply += data
        head, found, body = self._reply.partition(b"\r\n\r\n")
        if not found:
            return
        if not head.startswith(b"HTTP/1.1 200"):
            self.done.set_exception(RuntimeError(repr(head)))
            self._transport.close()
        elif len(body) == int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]):
            self._waits_s.append(time.perf_counter() - self._begun)
            self._send()

    def _send(self) -> None:
        self._reply = b""
        request = next(self._requests, None)
        if request is None:
            self.done.set_result(None)
            self._transport.close()
        else:
            self._begun = time.perf_counter()
            self._transport.write(request)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(RuntimeError(f"the server hung up ({exc})"))
