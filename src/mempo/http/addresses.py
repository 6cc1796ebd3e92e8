"""From the name of a host to its addresses, in threads that do not keep a process from ending."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence

from aiohttp.abc import AbstractResolver, ResolveResult

from mempo.http.threads import DaemonThreads

Resolver = Callable[[str, int], Sequence[str]]
"""From host and port to IP addresses, in the order in which they are tried. May block: it runs in a thread."""

RESOLVING = DaemonThreads(32, "mempo-resolve")


def system_addresses(host: str, port: int) -> Sequence[str]:
    """A Resolver that asks the system. Raises OSError, and UnicodeError for a name that cannot be one."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def is_literal(host: str) -> bool:
    """Whether aiohttp takes the host for an address already and asks no resolver."""
    return ":" in host or host.replace(".", "").isdigit()


class ThreadResolver(AbstractResolver):
    """What aiohttp asks. An exception of `addresses` other than OSError and ValueError reaches whoever sent the
    request. Not aiohttp's own resolver: its threads would keep the process from ending."""

    def __init__(self, addresses: Resolver) -> None:
        self._addresses = addresses

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        try:
            found = await asyncio.get_running_loop().run_in_executor(RESOLVING, self._addresses, host, port)
        except (OSError, ValueError) as error:
            raise OSError(0, str(error)) from error  # aiohttp tells the second
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST,
            )
            for address in found
        ]

    async def close(self) -> None:
        """Nothing is kept."""
