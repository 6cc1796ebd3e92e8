"""Pages of the live web: fetched from here, or read by a service."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from mempo.config.base import is_import_path
from mempo.config.tools import WebPageSettings
from mempo.errors import ConfigError
from mempo.imports import call_own, load_own
from mempo.retrieval.jsonl import valid_text
from mempo.retrieval.types import Document
from mempo.tools.retrying import BadCall
from mempo.tools.web_address import Resolver, checked_url, public_addresses
from mempo.tools.web_api import WebApi, key_of
from mempo.tools.web_errors import WebError
from mempo.tools.web_fetch import Fetcher
from mempo.tools.web_text import document_of, require_extraction


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
        """See PageReader. Raises BadCall and WebError as `Fetcher.fetch` does."""
        return document_of(self._fetcher.fetch(url))


class ApiReader:
    """`GET endpoint + url`, with `Authorization: Bearer` where there is a key → the page's text.

    The url is checked as for a fetch of our own: a service that runs beside us could reach our machines for the policy.
    """

    def __init__(self, settings: WebPageSettings, resolve: Resolver = public_addresses) -> None:
        self._settings = settings
        self._resolve = resolve
        key = key_of(settings.key_variable)
        self._headers = {"accept": "text/plain"} | ({"authorization": f"Bearer {key}"} if key else {})
        self._api = WebApi(settings)

    def read(self, url: str) -> Document | None:
        """See PageReader. Raises BadCall for an address that is not fetched, WebError when the service fails."""
        parsed, port = checked_url(url, self._settings.ports)
        self._resolve(parsed.raw_host.decode("ascii"), port)
        try:
            reply = self._api.ask("GET", self._settings.endpoint + str(parsed), self._headers)
        except WebError as error:
            if error.reason.startswith(("HTTP 404", "HTTP 422", "HTTP 451")):
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
