"""A server that says more than it was asked for never answers the next request with it."""

from __future__ import annotations

import asyncio
import time

import pytest

from mempo.http.client import HttpClient
from mempo.http.errors import HttpError

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


def test_nothing_is_read_from_the_second_of_two_kept_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """aiohttp passes over a connection that is too old, and would take the one behind it unseen."""
    monkeypatch.setattr("mempo.http.client._KEPT_S", 1.0)

    async def ask_all() -> list[str]:
        writers: list[asyncio.StreamWriter] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writers.append(writer)
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                body = f'"{head.split()[1]}"'.encode()
                await asyncio.sleep(0.05)
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        client = HttpClient("server", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", 10.0, 1 << 20)
        both = (client.ask("GET", f"/{n}", None, str) for n in (1, 2))
        found = list(await asyncio.gather(*both))
        pool = await client._pool()
        connector = pool.session.connector
        assert connector is not None
        [kept] = connector._conns.values()
        assert len(kept) == 2
        kept[0] = (kept[0][0], kept[0][1] - 60)  # a minute old; the server speaks on the other one
        second = kept[1][0].transport.get_extra_info("sockname")  # pyright: ignore[reportOptionalMemberAccess]
        for writer in writers:
            if writer.get_extra_info("peername") == second:
                writer.write(STALE)
        deadline = time.monotonic() + 5
        while not kept[1][0].should_close and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        found += [await client.ask("GET", f"/{n}", None, str) for n in (3, 4)]
        server.close()
        return found

    assert asyncio.run(ask_all()) == ["/1", "/2", "/3", "/4"]


def test_a_try_is_one_request_and_a_proxy_gets_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    heads: list[str] = []

    async def asks() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        here = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        client = HttpClient("server", f"http://{here}", 5.0, 1000)
        with pytest.raises(HttpError):
            await client.ask("GET", "/", None, str)
        assert (len(heads), client.counts["requests"]) == (1, 1)
        monkeypatch.setenv("https_proxy", here)  # without a scheme, as many write it
        key = {"authorization": "Bearer zq8-key", "x-api-key": "zq8-key"}
        with pytest.raises(HttpError):
            await HttpClient("server", "https://example.test", 5.0, 1000, headers=key).ask("GET", "/", None, str)
        server.close()

    asyncio.run(asks())
    assert heads[1].startswith("CONNECT example.test:443")
    assert "zq8" not in heads[1]
