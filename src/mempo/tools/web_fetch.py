"""Fetching one page: every redirect checked like the first address, and limits on size, time and kind."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import httpx

from mempo.config.tools import WebPageSettings
from mempo.retrieval.errors import body_head
from mempo.tools.retrying import BadCall
from mempo.tools.web_address import Resolver, checked_url, public_addresses
from mempo.tools.web_errors import WebError, is_retried

USER_AGENT = "mempo"
CONTENT_TYPES = ("text/html", "application/xhtml+xml", "text/plain")
"""Pages of other types are refused."""
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


@dataclass(frozen=True, slots=True)
class FetchedPage:
    """`url` is where the redirects ended; `charset` the one that the header names, else None."""

    url: str
    content: bytes
    content_type: str
    charset: str | None


class Fetcher:
    """Fetches pages. Safe to use from threads. Proxies named in the environment are not used: they would resolve."""

    def __init__(self, settings: WebPageSettings, resolve: Resolver = public_addresses) -> None:
        self._settings = settings
        self._resolve = resolve
        # Addresses are shared by hosts: a connection that was kept could be another host's.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self._client = httpx.Client(timeout=settings.timeout_s, trust_env=False, limits=limits, follow_redirects=False)

    def fetch(self, url: str) -> FetchedPage:
        """The page at `url`.

        Raises:
            BadCall: what the policy asked for is not to be had: see web_address.py; a status of 4xx, another content
                type, too long, too many redirects.
            WebError: the server fails, or does not answer.
        """
        until = time.monotonic() + self._settings.timeout_s
        for _ in range(self._settings.max_redirects + 1):
            found = self._ask(url, until)
            if isinstance(found, FetchedPage):
                return found
            url = found
        raise BadCall(f"more than {self._settings.max_redirects} redirects")

    def close(self) -> None:
        self._client.close()

    def _ask(self, url: str, until: float) -> FetchedPage | str:
        """The page, or the address that it redirects to."""
        parsed, port = checked_url(url, self._settings.ports)
        failure: httpx.ConnectError | None = None
        for address in self._resolve(parsed.raw_host.decode("ascii"), port):
            try:
                return self._ask_at(parsed, address, until)
            except httpx.ConnectError as error:
                if "CERTIFICATE_VERIFY_FAILED" in str(error):
                    raise BadCall("the site cannot prove that it is the one named") from None
                failure = error
            except httpx.TimeoutException:
                reason = f"no answer within {self._settings.timeout_s:g} s"
                raise WebError(str(parsed), reason, transient=True) from None
            except (httpx.HTTPError, zlib.error) as error:
                raise WebError(str(parsed), f"the connection broke off ({error})", transient=True) from None
        raise WebError(str(parsed), f"no connection ({failure})", transient=True)

    def _ask_at(self, parsed: httpx.URL, address: str, until: float) -> FetchedPage | str:
        request = self._client.build_request(
            "GET",
            parsed.copy_with(host=address),
            headers={
                "host": parsed.netloc.decode("ascii"),
                "user-agent": USER_AGENT,
                "accept": ", ".join(CONTENT_TYPES),
                "accept-encoding": "gzip",
            },
            timeout=max(until - time.monotonic(), 0.001),
            extensions={"sni_hostname": parsed.raw_host.decode("ascii")},
        )
        response = self._client.send(request, stream=True)
        try:
            status = response.status_code
            if status in _REDIRECTS and "location" in response.headers:
                return str(parsed.join(response.headers["location"]))
            if is_retried(status):
                head = body_head(next(response.iter_raw(), b""))
                raise WebError(str(parsed), f"HTTP {status}, first bytes: {head}", transient=True)
            if not response.is_success:
                raise BadCall(f"the page cannot be read: HTTP {status}")
            kind = response.headers.get("content-type", "text/html").partition(";")[0].strip().lower()
            if kind not in CONTENT_TYPES:
                raise BadCall(f"a page of type {ascii(kind)[1:-1]} cannot be read")
            content = self._content(response, until)
            return FetchedPage(str(parsed), content, kind, response.charset_encoding)
        finally:
            response.close()

    def _content(self, response: httpx.Response, until: float) -> bytes:
        allowed = self._settings.max_reply_bytes
        parts, size = list[bytes](), 0
        for part in _decoded(response, allowed + 1):
            if time.monotonic() > until:
                raise httpx.ReadTimeout("the page did not end")
            parts.append(part)
            size += len(part)
            if size > allowed:
                raise BadCall(f"the page is longer than {allowed} bytes")
        return b"".join(parts)


def _decoded(response: httpx.Response, at_most: int) -> Iterator[bytes]:
    """The body, decompressed, in pieces of at most `at_most` bytes: a small body may unpack to a very large one."""
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding in ("identity", ""):
        yield from response.iter_raw()
        return
    if encoding not in ("gzip", "x-gzip"):
        raise BadCall(f"a page packed as {ascii(encoding)[1:-1]} cannot be read")
    unpacker = zlib.decompressobj(wbits=31)
    for part in response.iter_raw():
        while part and not unpacker.eof:
            yield unpacker.decompress(part, at_most)
            part = unpacker.unconsumed_tail
