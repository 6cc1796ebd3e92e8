"""Pages of the live web: fetched from here, or read by a service."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from mempo.config.base import is_import_path
from mempo.config.tools import WebPageSettings
from mempo.errors import ConfigError
from mempo.http.addresses import Resolver
from mempo.http.client import HttpClient
from mempo.http.errors import HttpError
from mempo.http.secrets import key_of
from mempo.http.threads import wait_for
from mempo.retrieval.document import Document
from mempo.rollout.plugins import call_own, load_own
from mempo.storage.jsonl import valid_text
from mempo.tools.call import BadCall
from mempo.tools.web_address import check_host, checked_url, public_addresses
from mempo.tools.web_fetch import Fetcher
from mempo.tools.web_text import document_of, require_extraction

_NO_PAGE = frozenset({400, 404, 410, 422, 451})


@runtime_checkable
class PageReader(Protocol):
    """Opens pages. Called from threads, many at once; whatever it raises is tried again and then a failed call, except
    `BadCall`, which tells the policy what was wrong with the url."""

    def read(self, url: str) -> Document | None:
        """The page, or None where there is none."""
        ...


class WebPages:
    """A reader as the access tool asks it."""

    def __init__(self, reader: PageReader) -> None:
        self._reader = reader

    def access(self, urls: Sequence[str]) -> list[Document | None]:
        return [self._reader.read(url) for url in urls]


class DirectReader:
    """Fetches the page and takes its text out, here."""

    def __init__(self, settings: WebPageSettings, resolve: Resolver = public_addresses) -> None:
        """Raises UserError when the libraries of `mempo[web]` are missing."""
        require_extraction()
        self._fetcher = Fetcher(settings, resolve)

    def read(self, url: str) -> Document:
        """See PageReader. Raises BadCall and HttpError as `Fetcher.fetch` does."""
        return document_of(self._fetcher.fetch(url))


class ApiReader:
    """`GET endpoint + url`, with `Authorization: Bearer` where there is a key → the page's text.

    The url is checked as for a fetch of our own: a service that runs beside us could reach our machines for the policy.
    """

    def __init__(self, settings: WebPageSettings, resolve: Resolver = public_addresses) -> None:
        self._settings = settings
        self._resolve = resolve
        self._http = HttpClient(
            "page service",
            settings.endpoint,
            settings.timeout_s,
            settings.max_reply_bytes,
            headers={"accept": "text/plain"},
            token=key_of(settings.key_variable),
        )

    def read(self, url: str) -> Document | None:
        """See PageReader. Raises BadCall for an address that is not fetched, HttpError when the service fails."""
        parsed, port = checked_url(url, self._settings.ports)
        check_host(parsed, port, self._resolve, self._settings.timeout_s)
        try:
            reply = wait_for(self._http.text("GET", self._settings.endpoint + str(parsed)))
        except HttpError as error:
            if error.status in _NO_PAGE:
                return None
            raise
        text = valid_text(reply.decode("utf-8", "replace")).replace("\0", " ").strip()
        if not text:
            raise BadCall("the page has no text")
        title = text.partition("\n")[0].removeprefix("Title:").strip() if text.startswith("Title:") else ""
        return Document(str(parsed), title, text, str(parsed))


def make_reader(settings: WebPageSettings) -> PageReader:
    """Raises ConfigError: an unknown reader, or an own one that is none; UserError: libraries that are missing."""
    if settings.reader == "direct":
        return DirectReader(settings)
    if settings.reader == "api":
        return ApiReader(settings)
    what = "access.web.reader"
    if not is_import_path(settings.reader):
        raise ConfigError(f"{what}: unknown reader {settings.reader!r}; write direct, api or package.module:factory")
    made = call_own(f"{what}: {settings.reader}", load_own(settings.reader, what))
    if not isinstance(made, PageReader):
        raise ConfigError(f"{what}: {settings.reader} returned a {type(made).__name__} without read(url)")
    return made
