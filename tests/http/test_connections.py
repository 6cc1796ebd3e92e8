"""A server that says more than it was asked for never answers the next request with it."""

from __future__ import annotations

import asyncio

import pytest

from mempo.http.client import HttpClient

STALE = b'HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n"STALE"'


async def answers(reads_it: bool) -> tuple[list[str], int]:
    """Replies to six requests, and how many connections they took. After the third reply the server sends another.
    `reads_it`: the event loop turns before the next request, so that the bytes are read and not only waiting."""
    connections, answered, spoke = 0, asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while head := (await reader.readuntil(b"\r\n\r\n")).decode():
            body = f'"{head.split()[1]}"'.encode()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
            await writer.drain()
            if b"3" in body:
                await answered.wait()  # the client has its reply, the connection is idle
                writer.write(STALE)
                await writer.drain()
                spoke.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    client = HttpClient("server", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", 10.0, 1 << 20)
    found = []
    for n in range(1, 7):
        found.append(await client.ask("GET", f"/{n}", None, str))
        if n == 3:
            answered.set()
            await spoke.wait()
            if reads_it:
                await asyncio.sleep(0.02)
    server.close()
    return found, connections


@pytest.mark.parametrize("reads_it", [False, True])
def test_what_a_server_sends_unasked_answers_nothing(reads_it: bool) -> None:
    found, connections = asyncio.run(answers(reads_it))
    assert found == [f"/{n}" for n in range(1, 7)]
    assert connections == 2
