"""Slow heads, long heads and too many connections: each is refused, and others are answered meanwhile."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import httpx
import pytest

from mempo.retrieval.document import Document, Hit
from mempo.retrieval.server.app import create_app
from mempo.retrieval.server.guard import MAX_HEAD_BYTES, GuardedProtocol
from tests.retrieval.serving import serving

HEAD_S = 0.2
GOOD = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"


class Nothing:
    def retrieve(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
        return [[] for _ in queries]

    def access(self, urls: Sequence[str]) -> list[Document | None]:
        return [None for _ in urls]


@contextmanager
def guarded(most: int = 100) -> Iterator[str]:
    with serving(create_app(Nothing()), http=partial(GuardedProtocol, head_s=HEAD_S, most=most)) as url:
        yield url


def connected(url: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), timeout=10)


def rest(connection: socket.socket) -> bytes:
    """Until the server hangs up."""
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


@pytest.mark.parametrize(
    ("first", "drip"),
    [
        (b"", b""),
        (b"GET /hea", b""),
        (b"GET /health HTTP/1.1\r\n", b"x: y\r\n"),
        (b"", b"\r\n"),
        (GOOD, b"\r\n"),
        (GOOD, b"x"),
        (GOOD + GOOD, b"G"),
    ],
    ids=["silent", "half", "drip", "lines", "lines_later", "drip_later", "pipelined"],
)
def test_a_head_that_does_not_come_is_given_up(first: bytes, drip: bytes) -> None:
    stopping = threading.Event()
    with guarded() as url, connected(url) as connection:
        connection.sendall(first)

        def go_on() -> None:
            try:
                while drip and not stopping.wait(0.02):
                    connection.sendall(drip)
            except OSError:
                pass

        thread = threading.Thread(target=go_on)
        thread.start()
        try:
            said = rest(connection)
        except ConnectionResetError:  # a drop on its way when the server hung up
            said = b""
        stopping.set()
        thread.join()
        assert said.count(b"200 OK") == first.count(b"\r\n\r\n") or not said
        assert httpx.get(f"{url}/health").status_code == 200


def test_a_head_that_is_too_long_is_refused() -> None:
    with guarded() as url, connected(url) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\n" + b"x-a: " + b"y" * (MAX_HEAD_BYTES + 10))
        assert rest(connection).startswith(b"HTTP/1.1 431 ")


def test_long_bodies_and_kept_connections_are_no_heads() -> None:
    with guarded() as url, httpx.Client() as client:
        for _ in range(3):
            reply = client.post(f"{url}/retrieve", json={"queries": ["x" * 60_000] * 20})
            assert reply.json() == {"result": [[]] * 20}
            threading.Event().wait(1.5 * HEAD_S)  # idle for longer than a head may take


def test_connections_beyond_the_limit_are_refused_and_come_back() -> None:
    with guarded(most=5) as url:
        with ExitStack() as held:
            for _ in range(5):
                connection = held.enter_context(connected(url))
                connection.sendall(GOOD)
                assert connection.recv(100).startswith(b"HTTP/1.1 200")
            refused = httpx.get(f"{url}/health")
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        for _ in range(100):
            if httpx.get(f"{url}/health").status_code == 200:
                break
        else:
            raise AssertionError("nobody is let in again")
