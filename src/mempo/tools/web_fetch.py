"""Fetching one page: every redirect checked like the first address, and limits on size, time and kind."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

from yarl import URL

from mempo.config.tools import WebPageSettings
from mempo.http.addresses import Resolver
from mempo.http.client import HttpClient, Reply
from mempo.http.errors import RETRIED_STATUSES, HttpError
from mempo.http.threads import wait_for
from mempo.tools.call import BadCall
from mempo.tools.web_address import checked_url, failed_site, public_addresses

CONTENT_TYPES = ("text/html", "application/xhtml+xml", "text/plain")
"""Pages of other types are refused."""
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_UNPACKED = ("", "identity", "gzip", "deflate")
_CHARSET = re.compile(r"charset\s*=\s*[\"']?([^\s;\"']+)", re.IGNORECASE)


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
        self._settings, self._resolve = settings, resolve
        headers = {"accept": ", ".join(CONTENT_TYPES), "accept-encoding": "gzip"}
        # Many pages at once: how many is for the tool to say.
        self._http = HttpClient(
            "web page", "", settings.timeout_s, settings.max_reply_bytes, 1 << 20, headers, resolve=resolve
        )

    def fetch(self, url: str) -> FetchedPage:
        """The page at `url`.

        Raises:
            BadCall: what the policy asked for is not to be had: see web_address.py; a status of 4xx, another content
                type, too long, too many redirects; and, after more tries, a site that fails or does not answer.
            HttpError: the network is down.
        """
        until = time.monotonic() + self._settings.timeout_s
        for _ in range(self._settings.max_redirects + 1):
            found = self._ask(url, until)
            if isinstance(found, FetchedPage):
                return found
            url = found
        raise BadCall(f"more than {self._settings.max_redirects} redirects")

    def close(self) -> None:
        self._http.close()

    def _ask(self, url: str, until: float) -> FetchedPage | str:
        """The page, or the address that it redirects to."""
        parsed, _ = checked_url(url, self._settings.ports)
        try:
            reply = wait_for(self._http.send("GET", parsed, timeout_s=max(until - time.monotonic(), 0.001)))
        except HttpError as error:
            if "CERTIFICATE_VERIFY_FAILED" in error.reason:
                raise BadCall("the site cannot prove that it is the one named") from None
            raise failed_site(error, self._resolve, self._settings.timeout_s) from None
        if reply.status in _REDIRECTS and "location" in reply.headers:
            try:
                return str(parsed.join(URL(reply.headers["location"])))
            except Exception:  # whatever a parser makes of it
                raise BadCall("the page redirects to something that is not a url") from None
        return self._page(str(parsed), reply)

    def _page(self, url: str, reply: Reply) -> FetchedPage:
        if reply.status in RETRIED_STATUSES:
            raise BadCall(f"the site fails: HTTP {reply.status}", transient=True)
        if not 200 <= reply.status < 300:
            raise BadCall(f"the page cannot be read: HTTP {reply.status}")
        header = reply.headers.get("content-type", "text/html")
        kind = header.partition(";")[0].strip().lower()
        if kind not in CONTENT_TYPES:
            raise BadCall(f"a page of type {ascii(kind)[1:-1]} cannot be read")
        coding = reply.headers.get("content-encoding", "").strip().lower()
        if coding not in _UNPACKED:
            raise BadCall(f"a page packed as {ascii(coding)[1:-1]} cannot be read")
        if reply.is_cut:
            raise BadCall(f"the page is longer than {self._settings.max_reply_bytes} bytes")
        charset = _CHARSET.search(header)
        return FetchedPage(url, reply.body, kind, charset.group(1) if charset else None)
