"""HTTP/1.1 as servers speak it, byte by byte, against a scripted socket."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from mempo.http.client import HttpClient, Reply, proxy_of
from mempo.http.errors import HttpError

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


class Scripted:
    """Sends the next of `replies` after each request; None hangs up. `requests` are heads and bodies as they came."""

    def __init__(self, replies: Sequence[bytes | None]) -> None:
        self.replies = list(replies)
        self.requests: list[bytes] = []
        self.connections = 0

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while self.replies:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(length))
                reply = self.replies.pop(0)
                if reply is None:
                    break
                for part in (reply[:20], reply[20:]):  # in two pieces, as networks like
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(0.001)
                if b"\r\nconnection: close" in reply.lower() or b"content-length" not in reply:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def talk(replies: Sequence[bytes | None], use: Callable[[HttpClient, str], Awaitable[Any]]) -> tuple[Any, Scripted]:
    script = Scripted(replies)

    async def run() -> Any:
        server = await asyncio.start_server(script.connected, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/x"
        client = HttpClient("server", url, 5.0, 1000, headers={"authorization": "Bearer k"})
        async with server, asyncio.timeout(5):
            return await use(client, url)

    return asyncio.run(run()), script


async def once(client: HttpClient, url: str) -> Reply:
    return await client.send("POST", url, b'{"a": 1}')


async def thrice(client: HttpClient, url: str) -> list[Reply]:
    return [await once(client, url) for _ in range(3)]


def test_what_is_sent() -> None:
    _, script = talk([OK], once)
    head, body = script.requests[0].split(b"\r\n\r\n")
    assert body == b'{"a": 1}'
    lines = head.lower().split(b"\r\n")
    assert lines[0] == b"post /v1/x http/1.1"
    assert {b"content-length: 8", b"authorization: bearer k"} <= set(lines)
    assert any(line.startswith(b"host: 127.0.0.1:") for line in lines)


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n[1,2,3]",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\n[1,\r\n4\r\n2,3]\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n[1,2,3]",
        b"HTTP/1.0 200 OK\r\n\r\n[1,2,3]",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n[1,2,3]",
    ],
    ids=["length", "chunks", "until_the_end", "http_1_0", "continue"],
)
def test_every_form_of_a_body(reply: bytes) -> None:
    response, _ = talk([reply], once)
    assert (response.status, json.loads(response.body)) == (200, [1, 2, 3])


def test_headers_come_through() -> None:
    busy = b"HTTP/1.1 429 Too Many\r\nRetry-After: 7\r\ncontent-length: 0\r\n\r\n"
    response, _ = talk([busy], once)
    assert (response.status, response.headers["retry-after"], response.body) == (429, "7", b"")


def test_a_connection_is_taken_again() -> None:
    responses, script = talk([OK, OK, OK], thrice)
    assert [response.body for response in responses] == [b"{}"] * 3
    assert script.connections == 1


def test_a_server_that_closes_gets_a_new_connection() -> None:
    closing = OK.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
    responses, script = talk([closing, closing, OK], thrice)
    assert [response.body for response in responses] == [b"{}"] * 3
    assert script.connections == 3


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (None, "broke off.*ServerDisconnected"),
        (b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 50\r\n\r\n{", "broke off.*ContentLength"),
        (b"SSH-2.0-OpenSSH_9.6 connection: close\r\n\r\n", "broke off.*Bad status line"),
        (b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nxx", "HTTP 101"),
        (b"\x15\x03\x01\x00\x02\x02\x16 no http at all, but long enough", "broke off.*Bad status line"),
    ],
    ids=["nothing", "half", "ssh", "upgrade", "tls"],
)
def test_what_is_no_reply(reply: bytes | None, says: str) -> None:
    with pytest.raises(HttpError, match=says):
        talk([reply], lambda client, url: client.text("POST", url, b"{}"))


def test_a_reply_that_is_too_long_is_broken_off() -> None:
    response, _ = talk([b"HTTP/1.1 200 OK\r\ncontent-length: 9000000\r\n\r\n" + b"x" * 5000], once)
    assert 1000 < len(response.body) <= 5000
    assert response.is_cut


def test_a_packed_body_is_unpacked() -> None:
    packed = gzip.compress(b"[1, 2]")
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(packed)
    response, script = talk([head + packed], once)
    assert (response.body, response.is_cut) == (b"[1, 2]", False)
    assert b"accept-encoding: identity\r\n" in script.requests[0], "it is not asked for"


def test_a_bomb_is_unpacked_no_further_than_allowed() -> None:
    packed = gzip.compress(bytes(10**7))
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(packed)
    response, _ = talk([head + packed], once)
    assert response.is_cut
    assert len(response.body) < 10**6


def test_a_head_that_never_ends_is_broken_off() -> None:
    endless = b"HTTP/1.1 200 OK\r\n" + b"x-a: b\r\n" * 1000 + b"content-length: 0\r\n"
    with pytest.raises(HttpError, match="broke off"):
        talk([endless], once)


def test_a_second_reply_to_one_request_is_never_taken_for_the_next() -> None:
    second = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n[2]"
    responses, script = talk([b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n[1]" + second, OK, OK], thrice)
    assert [response.body for response in responses] == [b"[1]", b"{}", b"{}"]
    assert script.connections == 2


def test_one_that_gives_up_leaves_no_connection_behind() -> None:
    async def impatient(client: HttpClient, url: str) -> Reply:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await once(client, url)
        return await once(client, url)

    silent = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{"
    response, script = talk([silent, OK], impatient)
    assert (response.body, script.connections) == (b"{}", 2)


def test_the_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", "inside.example")
    monkeypatch.delenv("http_proxy", raising=False)
    monkeypatch.delenv("all_proxy", raising=False)
    assert proxy_of("https://api.example/v1") == "http://proxy:3128"
    assert proxy_of("https://inside.example/v1") is None
    assert proxy_of("http://api.example/v1") is None
