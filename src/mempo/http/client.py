"""Requests to one kind of server: pooled connections, a limit of requests under way, a deadline over the whole of each,
bounded retries, and secrets taken out of whatever comes back.

Every event loop may ask (one `asyncio.run` after another too), each over connections of its own; plain functions ask
over the loop of the background.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import ssl
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from functools import cache
from typing import Any, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass
from weakref import WeakKeyDictionary

import httpx

from mempo.config.tools import RetrySettings
from mempo.http.errors import FailureKind, HttpError, body_head
from mempo.http.retry import ONCE, retried, retry_after_s
from mempo.http.secrets import Redactor
from mempo.http.threads import background_loop, wait_for
from mempo.http.transport import Connections, DirectConnections, ProxiedConnections, Reply, Resolver
from mempo.rollout.waits import asking

T = TypeVar("T")
Read = Callable[[Any], T]
"""From the JSON of a reply to what is wanted of it; raises ValueError for a reply of the wrong form."""

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_CONNECT_S = 10.0
_LOOKED_AT_BYTES = 1 << 14


class HttpClient:
    """Requests to the server at `base`, which is put in front of paths.

    `service`: what an error calls the server. `timeout_s`: seconds of one request, from the look-up of the host to the
    last byte of the reply; waiting for one's turn is not counted. `headers` go with every request; `secret` is what of
    them must not come back. `resolve`: connect only to the addresses that it gives, never through a proxy, and keep no
    connection; by default the system is asked, and a proxy that the environment names is used.

    `counts` tells requests (tries), retries and failures for good.
    """

    def __init__(
        self,
        service: str,
        base: str,
        timeout_s: float,
        max_reply_bytes: int,
        max_concurrent: int = 64,
        headers: Mapping[str, str] | None = None,
        secret: str | None = None,
        resolve: Resolver | None = None,
    ) -> None:
        self.base = base
        self.counts: Counter[str] = Counter()
        self._service, self._timeout_s, self._max_reply_bytes = service, timeout_s, max_reply_bytes
        self._max_concurrent, self._headers, self._resolve = max_concurrent, dict(headers or {}), resolve
        self._redactor = Redactor(secret)
        self._connect_s = min(_CONNECT_S, timeout_s)
        self._pools: WeakKeyDictionary[asyncio.AbstractEventLoop, _Pool] = WeakKeyDictionary()
        self._closed = False

    async def ask(self, method: str, path: str, body: Any, read: Read[T], retry: RetrySettings = ONCE) -> T:
        """`read(reply)` of a request for JSON; `body` None sends none.

        Raises:
            HttpError: no try succeeded, or one failed in a way that another cannot fix.
        """
        url = self.base + path
        # Lone surrogates are escaped, so that any text of ours is a valid request.
        content = None if body is None else json.dumps(body, separators=(",", ":")).encode("ascii")
        tries = 0

        async def attempt() -> T:
            nonlocal tries
            tries += 1
            self.counts["retries"] += tries > 1
            return self._read(url, await self.text(method, url, content, tries), read, tries)

        try:
            return await retried(attempt, retry, HttpError)
        except HttpError:
            self.counts["failed"] += 1
            raise

    def ask_now(self, method: str, path: str, body: Any, read: Read[T], retry: RetrySettings = ONCE) -> T:
        """The same, for plain functions."""
        return wait_for(self.ask(method, path, body, read, retry))

    async def text(self, method: str, url: str, content: bytes | None = None, attempt: int = 1) -> bytes:
        """The body of a good and whole reply to one request. Raises HttpError."""
        reply = await self.send(method, url, content, attempt=attempt)
        if not 200 <= reply.status < 300:
            raise self.failure("status", url, f"HTTP {reply.status}", reply, attempt)
        if reply.is_cut:
            raise self.failure("schema", url, f"the reply is longer than {self._max_reply_bytes} bytes", reply, attempt)
        return reply.body

    async def send(
        self,
        method: str,
        url: str,
        content: bytes | None = None,
        timeout_s: float | None = None,
        attempt: int = 1,
    ) -> Reply:
        """The reply to one request, whatever its status. `timeout_s`: other than the client's.

        Raises:
            HttpError: `refused` or `timeout`; and whatever `resolve` raises.
        """
        within_s = self._timeout_s if timeout_s is None else timeout_s
        pool = await self._pool()
        async with pool.turns:
            self.counts["requests"] += 1
            asking(self._service, url)
            try:
                async with asyncio.timeout(within_s):
                    reply = await pool.connections.send(method, url, content)
            except httpx.ConnectTimeout:
                reason = f"no connection within {min(self._connect_s, within_s):g} s"
                raise self.failure("refused", url, reason, attempt=attempt) from None
            except (TimeoutError, httpx.TimeoutException):
                reason = f"no whole reply within {self._timeout_s:g} s"
                raise self.failure("timeout", url, reason, attempt=attempt) from None
            except httpx.ConnectError as error:
                reason = f"no connection ({error}); is it running?"
                raise self.failure("refused", url, reason, attempt=attempt) from error
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                reason = f"the connection broke off ({type(error).__name__}: {error})"
                raise self.failure("refused", url, reason, attempt=attempt) from None
        reply.body = self._redactor.body(reply.body)
        return reply

    def failure(
        self, kind: FailureKind, url: str, reason: str, reply: Reply | None = None, attempt: int = 1
    ) -> HttpError:
        """An error that names the server and what it replied, and tells nothing secret."""
        reason += "" if attempt == 1 else f" (try {attempt})"
        told = self._redactor.message(reason.encode(errors="replace")).decode(errors="replace")
        if reply is None:
            return HttpError(self._service, kind, url, told)
        head = body_head(self._redactor.message(reply.body[:_LOOKED_AT_BYTES]))
        return HttpError(
            self._service, kind, url, told, reply.status, head, retry_after_s(reply.headers.get("retry-after"))
        )

    def close(self) -> None:
        """Nothing is asked any more. Each event loop closes its connections when it ends."""
        self._closed = True
        loop = background_loop()
        if (pool := self._pools.get(loop)) is not None:
            loop.call_soon_threadsafe(lambda: loop.create_task(pool.connections.aclose()))

    def _read(self, url: str, body: bytes, read: Read[T], attempt: int) -> T:
        reply = Reply(200, {}, body, False)
        try:
            parsed = json.loads(body.removeprefix(codecs.BOM_UTF8).decode("utf-8"))
        except (ValueError, RecursionError):
            raise self.failure("not_json", url, "the reply is not JSON", reply, attempt) from None
        try:
            return read(parsed)
        except (ValueError, OverflowError) as error:
            raise self.failure("schema", url, str(error), reply, attempt) from None

    async def _pool(self) -> _Pool:
        """The connections of the running event loop."""
        if self._closed:
            raise RuntimeError(f"the client of the {self._service} {self.base} is closed")
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is None:
            self._pools[loop] = pool = _Pool(asyncio.Semaphore(self._max_concurrent), self._connections())
            pool.closer = pool.until_the_end()
            await anext(pool.closer)
        return pool

    def _connections(self) -> Connections:
        """Straight to the server, unless the environment names a proxy for the address."""
        # A proxy named in the environment cannot reach a server on this very machine.
        trust_env = self._resolve is None and urlsplit(self.base).hostname not in _LOOPBACK
        context, most_bytes = _ssl_context(trust_env), self._max_reply_bytes
        if trust_env and proxy_of(self.base):
            return ProxiedConnections(self._headers, context, most_bytes, self._max_concurrent)
        if self._resolve is not None:
            return DirectConnections(self._headers, context, self._connect_s, most_bytes, self._resolve, keep=False)
        return DirectConnections(self._headers, context, self._connect_s, most_bytes)


class _Pool:
    """The connections of one event loop, and the turns of those who want one."""

    def __init__(self, turns: asyncio.Semaphore, connections: Connections) -> None:
        self.turns, self.connections = turns, connections
        self.closer: AsyncGenerator[None, None] | None = None

    async def until_the_end(self) -> AsyncGenerator[None, None]:
        """Ended by the event loop when it shuts down (`shutdown_asyncgens`), while connections can still be closed."""
        try:
            yield
        finally:
            await self.connections.aclose()


@cache
def _ssl_context(trust_env: bool) -> ssl.SSLContext:
    return httpx.create_ssl_context(trust_env=trust_env)  # reading certificates takes a while: once


def proxy_of(url: str) -> str | None:
    """The proxy that the environment names for an address."""
    parts = urlsplit(url)
    if proxy_bypass(parts.hostname or ""):
        return None
    proxies = getproxies()
    return proxies.get(parts.scheme) or proxies.get("all")
