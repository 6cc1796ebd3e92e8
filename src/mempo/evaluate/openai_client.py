"""One HTTP client for a model server: pooled connections, a limit of requests under way, time-outs, bounded retries.

Every event loop may ask (one `asyncio.run` after another too), each over connections of its own.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass
from weakref import WeakKeyDictionary

import httpx

from mempo.config.server import ServerSettings, base_url
from mempo.config.tools import RetrySettings
from mempo.evaluate.openai_errors import ServerError
from mempo.evaluate.openai_transport import Connections, DirectConnections, ProxiedConnections, Reply
from mempo.tools.web_api import key_of

T = TypeVar("T")
Read = Callable[[dict[str, Any]], T]

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class OpenAIClient:
    """Requests to `settings.url`. The key is read from the environment when the client is made, and kept in a header.

    `counts` tells requests (tries), retries and failures for good.

    Raises:
        UserError: a key that no header can hold.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.base = base_url(settings.url)
        self.counts: Counter[str] = Counter()
        self._key = key_of(settings.key_variable)
        self._headers = {"content-type": "application/json", "accept": "application/json"}
        if self._key is not None:
            self._headers["authorization"] = f"Bearer {self._key}"
        # A proxy named in the environment cannot reach a server on this very machine.
        self._trust_env = urlsplit(self.base).hostname not in _LOOPBACK
        self._connect_s = min(10.0, settings.timeout_s)
        self._ssl = httpx.create_ssl_context(trust_env=self._trust_env)  # reading certificates takes a while: once
        self._pools: WeakKeyDictionary[asyncio.AbstractEventLoop, _Pool] = WeakKeyDictionary()
        self._closed = False

    async def post(self, path: str, body: Mapping[str, Any], read: Read[T]) -> T:
        """`read(reply)` of a request with a JSON body. `read` raises ValueError for a reply of the wrong form.

        Raises:
            ServerError: no try succeeded, or one failed in a way that another cannot mend.
        """
        return await self._ask("POST", path, body, read)

    def post_now(self, path: str, body: Mapping[str, Any], read: Read[T]) -> T:
        """The same, for plain functions."""
        return asyncio.run(self._ask("POST", path, body, read))

    def get_now(self, path: str, read: Read[T]) -> T:
        return asyncio.run(self._ask("GET", path, None, read))

    def close(self) -> None:
        """Nothing is asked any more. Each event loop has closed its connections when it ended."""
        self._closed = True

    def __enter__(self) -> OpenAIClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _pool(self) -> _Pool:
        """The connections of the running event loop."""
        if self._closed:
            raise RuntimeError(f"the client of {self.base} is closed")
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is None:
            self._pools[loop] = pool = _Pool(asyncio.Semaphore(self.settings.max_concurrent), self._connections())
            pool.closer = pool.until_the_end()
            await anext(pool.closer)
        return pool

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None, read: Read[T]) -> T:
        retry = self.settings.retry
        content = None if body is None else _json_bytes({**body, **self.settings.extra})
        wait_s = retry.backoff_s
        for attempt in range(1, retry.tries + 1):
            try:
                return await self._try(method, path, content, read, attempt)
            except ServerError as error:
                if attempt == retry.tries or not error.transient:
                    self.counts["failed"] += 1
                    raise
                asked_s = error.retry_after_s or 0.0
            self.counts["retries"] += 1
            await asyncio.sleep(pause_s(wait_s, asked_s, retry))
            wait_s *= 2
        raise AssertionError("unreachable: tries >= 1")

    async def _try(self, method: str, path: str, content: bytes | None, read: Read[T], attempt: int) -> T:
        """One request. Raises ServerError."""
        url = f"{self.base}{path}"
        after = "" if attempt == 1 else f" (try {attempt})"

        def failed(kind: Any, reason: str, reply: Reply | None = None) -> ServerError:
            status, text = (reply.status, reply.body) if reply else (None, b"")
            wait_s = retry_after_s(reply.headers.get("retry-after")) if reply else None
            return ServerError(kind, url, reason + after, status, text, self._key, wait_s)

        pool = await self._pool()
        async with pool.turns:
            self.counts["requests"] += 1
            try:
                async with asyncio.timeout(self.settings.timeout_s):
                    reply = await pool.connections.send(method, url, content)
            except httpx.ConnectTimeout:
                raise failed("refused", f"no connection within {self._connect_s:g} s") from None
            except (TimeoutError, httpx.TimeoutException):
                raise failed("timeout", f"no whole reply within {self.settings.timeout_s:g} s") from None
            except httpx.ConnectError as error:
                raise failed("refused", f"no connection ({error}); is it running?") from None
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise failed("refused", f"the connection broke off ({type(error).__name__}: {error})") from None
        if not 200 <= reply.status < 300:
            raise failed("status", f"HTTP {reply.status}", reply)
        if reply.is_cut:
            raise failed("schema", f"the reply is longer than {self.settings.max_reply_bytes} bytes", reply)
        try:
            parsed = json.loads(reply.body.decode("utf-8"))
        except (ValueError, RecursionError):
            raise failed("not_json", "the reply is not JSON", reply) from None
        if not isinstance(parsed, dict):
            raise failed("schema", "the reply is no JSON object", reply)
        try:
            return read(parsed)
        except (ValueError, OverflowError) as error:
            raise failed("schema", str(error), reply) from None

    def _connections(self) -> Connections:
        """Straight to the server, unless the environment names a proxy for the address."""
        most_bytes = self.settings.max_reply_bytes
        if self._trust_env and proxy_of(self.base):
            return ProxiedConnections(self._headers, self._ssl, most_bytes, self.settings.max_concurrent)
        return DirectConnections(self._headers, self._ssl, self._connect_s, most_bytes)


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


def proxy_of(url: str) -> str | None:
    """The proxy that the environment names for an address."""
    parts = urlsplit(url)
    if proxy_bypass(parts.hostname or ""):
        return None
    proxies = getproxies()
    return proxies.get(parts.scheme) or proxies.get("all")


def pause_s(backoff_s: float, asked_s: float, retry: RetrySettings) -> float:
    """Seconds until the next try: the back-off less a random part, or longer where the server asked for it."""
    jittered_s = backoff_s * (1 - retry.jitter * random.random())
    return min(max(jittered_s, asked_s), retry.max_backoff_s)


def retry_after_s(header: str | None, now: datetime | None = None) -> float | None:
    """Seconds to wait, from either form of the Retry-After header; None when there is none or it cannot be read."""
    text = (header or "").strip()
    if text.isascii() and text.replace(".", "", 1).isdigit():
        return float(text)
    try:
        until = parsedate_to_datetime(text)
    except ValueError:
        return None
    until = until if until.tzinfo else until.replace(tzinfo=UTC)
    return max(0.0, (until - (now or datetime.now(UTC))).total_seconds())


def _json_bytes(body: Mapping[str, Any]) -> bytes:
    # Lone surrogates are escaped, so that any text of ours is a valid request.
    return json.dumps(body, separators=(",", ":")).encode("ascii")
