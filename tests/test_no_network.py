"""The suite needs no network and gets none."""

from __future__ import annotations

import asyncio
import socket
from contextlib import closing

import pytest


@pytest.mark.parametrize("address", [("192.0.2.1", 80), ("2001:db8::1", 80, 0, 0)])
def test_nothing_connects_to_another_machine(address: tuple[str, int]) -> None:
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with closing(socket.socket(family)) as made, pytest.raises(OSError, match="no network in tests"):
        made.connect(address)


def test_no_other_name_is_looked_up() -> None:
    with pytest.raises(OSError, match="no network in tests"):
        socket.getaddrinfo("example.org", 80)
    with pytest.raises(OSError, match="no network in tests"):
        asyncio.run(asyncio.open_connection("example.org", 80))


def test_this_machine_answers() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        socket.create_connection(server.getsockname()).close()
    assert socket.getaddrinfo("localhost", 80)
