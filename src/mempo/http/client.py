"""Requests to one kind of server: pooled connections, a limit of requests under way, a deadline over the whole of each,
bounded retries, and secrets taken out of whatever comes back.

Every event loop may ask (one `asyncio.run` after another too), each over connections of its own; plain functions ask
over the loop of the background.
"""

from __future__ import annotations

import asyncio
import codecs
import json
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass
from weakref import WeakKeyDictionary, finalize

import aiohttp
from yarl import URL

from mempo.config.tools import RetrySettings
from mempo.errors import UserError
from mempo.http.addresses import RESOLVING, Resolver, ThreadResolver, is_literal, system_addresses
from mempo.http.connections import KeptConnections
from mempo.http.errors import FailureKind, HttpError, body_head
from mempo.http.retry import ONCE, retried, retry_after_s
from mempo.http.secrets import Redactor
from mempo.http.threads import background_loop, wait_for
from mempo.rollout.waits import asking

T = TypeVar("T")
USER_AGENT = "mempo"
JSON: Mapping[str, str] = {"content-type": "application/json", "accept": "application/json"}
Read = Callable[[Any], T]
"""From the JSON of a reply to what is wanted of it; raises ValueError for a reply of the wrong form."""

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_CONNECT_S = 10.0
_LOOKED_AT_BYTES = 1 << 14
_MAX_HEADER_BYTES = 1 << 16
_KEPT_S = 4.0
"""Many servers hang up after 5 idle seconds: a connection is given up before, not while a request is on its way."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply as it came. `is_cut`: its body is longer than was allowed, and only its beginning is here."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    is_cut: bool = False


class HttpClient:
    """Requests to the server at `base`, which is put in front of paths.

    `service`: what an error calls the server. `timeout_s`: seconds of one request, from the look-up of the host to the
    last byte of the reply; waiting for one's turn is not counted. `headers` go with every request, and so does `token`,
    as `Authorization: Bearer`; it, or another `secret` in the headers, is taken out of whatever comes back. `resolve`:
    connect only to the addresses that it gives, never through a proxy, and keep no connection; by default the system
    is asked, and a proxy that the environment names is used.

    `counts` tells requests (tries), retries and failures for good.
    """

    def __init__(
        self,
        service: str,
        base: str,
        timeout_s: float,
        max_reply_bytes: int,
        max_concurrent: int = 64,
        headers: Mapping[str, str] = JSON,
        token: str | None = None,
        secret: str | None = None,
        resolve: Resolver | None = None,
    ) -> None:
        self.base = base
        self.counts: Counter[str] = Counter()
        self._service, self._timeout_s, self._max_reply_bytes = service, timeout_s, max_reply_bytes
        self._max_concurrent, self._resolve = max_concurrent, resolve
        # A server may compress when nothing is said.
        self._headers = {"accept-encoding": "identity", "user-agent": USER_AGENT, **headers}
        if token is not None:
            self._headers["authorization"] = f"Bearer {token}"
        self._redactor = Redactor(token or secret)
        self._connect_s = min(_CONNECT_S, timeout_s)
        # A proxy that the environment names cannot reach a server on this very machine.
        self._proxy = None if resolve is not None or urlsplit(base).hostname in _LOOPBACK else proxy_of(base)
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
        url: str | URL,
        content: bytes | None = None,
        timeout_s: float | None = None,
        attempt: int = 1,
    ) -> Reply:
        """The reply to one request, whatever its status. `timeout_s`: other than the client's.

        Raises:
            HttpError: `refused` or `timeout`; and whatever `resolve` raises.
        """
        within_s = self._timeout_s if timeout_s is None else timeout_s
        kind: FailureKind = "refused"
        pool = await self._pool()
        async with pool.turns:
            self.counts["requests"] += 1
            asking(self._service, str(url))
            try:
                async with asyncio.timeout(within_s):
                    return await self._exchange(pool.session, method, URL(url), content)
            except aiohttp.ConnectionTimeoutError:
                reason = f"no connection within {min(self._connect_s, within_s):g} s"
            except TimeoutError:
                kind, reason = "timeout", f"no whole reply within {self._timeout_s:g} s"
            except aiohttp.ClientConnectorError as error:
                reason = f"no connection ({error}); is it running?"
            except (aiohttp.ClientError, OSError, ValueError) as error:
                said = " ".join(str(getattr(error, "message", error)).split())  # without the url once more
                reason = f"the connection broke off ({type(error).__name__}: {said})"
        raise self.failure(kind, str(url), reason, attempt=attempt)

    async def _exchange(self, session: aiohttp.ClientSession, method: str, url: URL, content: bytes | None) -> Reply:
        host = url.raw_host or ""
        if self._resolve is not None and is_literal(host):  # aiohttp asks for names alone
            await asyncio.get_running_loop().run_in_executor(RESOLVING, self._resolve, host, url.port or 0)
        body = bytearray()
        # Not the session's headers: those, keys included, aiohttp would send to a proxy too.
        async with session.request(
            method, url, data=content, headers=self._headers, allow_redirects=False, proxy=self._proxy
        ) as response:
            async for part in response.content.iter_any():
                body += part
                if len(body) > self._max_reply_bytes:
                    break
        is_cut = len(body) > self._max_reply_bytes
        return Reply(response.status, response.headers, self._redactor.body(bytes(body)), is_cut)

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
            _close_soon(loop, pool.session)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, url: str, body: bytes, read: Read[T], attempt: int) -> T:
        reply = Reply(200, {}, body)
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
            session = self._session()
            dropped = finalize(self, _close_soon, loop, session)  # a client that nobody closed
            dropped.atexit = False  # the loop of the background closes its connections itself
            forget = partial(self._pools.pop, loop, None)
            self._pools[loop] = pool = _Pool(asyncio.Semaphore(self._max_concurrent), session, dropped, forget)
            pool.closer = pool.until_the_end()
            await anext(pool.closer)
        return pool

    def _session(self) -> aiohttp.ClientSession:
        resolver = ThreadResolver(self._resolve or system_addresses)
        if self._resolve is None:
            connector = KeptConnections(limit=0, use_dns_cache=False, resolver=resolver, keepalive_timeout=_KEPT_S)
        else:
            connector = KeptConnections(limit=0, use_dns_cache=False, resolver=resolver, force_close=True)
        session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=None, connect=self._connect_s),
            cookie_jar=aiohttp.DummyCookieJar(),
            max_line_size=_MAX_HEADER_BYTES,
            max_field_size=_MAX_HEADER_BYTES,
            max_headers=1024,
        )
        session._retry_connection = False  # aiohttp would ask twice for one try of ours
        return session


class _Pool:
    """The connections of one event loop, and the turns of those who want one."""

    def __init__(
        self,
        turns: asyncio.Semaphore,
        session: aiohttp.ClientSession,
        dropped: finalize[..., Any],
        forget: Callable[[], object],
    ) -> None:
        self.turns, self.session, self._dropped, self._forget = turns, session, dropped, forget
        self.closer: AsyncGenerator[None, None] | None = None

    async def until_the_end(self) -> AsyncGenerator[None, None]:
        """Ended by the event loop when it shuts down (`shutdown_asyncgens`), while connections can still be closed."""
        try:
            yield
        finally:
            self._dropped.detach()
            self._forget()
            await self.session.close()


def _close_soon(loop: asyncio.AbstractEventLoop, session: aiohttp.ClientSession) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(lambda: loop.create_task(session.close()))


def proxy_of(url: str) -> str | None:
    """The proxy that the environment names for an address."""
    parts = urlsplit(url)
    if proxy_bypass(parts.hostname or ""):
        return None
    proxies = getproxies()
    found = proxies.get(parts.scheme) or proxies.get("all")
    if found and "://" not in found:
        found = f"http://{found}"
    if found and urlsplit(found).scheme not in ("http", "https"):
        raise UserError(f"a proxy of kind {urlsplit(found).scheme}:// is named by the environment; use one of http://")
    return found
