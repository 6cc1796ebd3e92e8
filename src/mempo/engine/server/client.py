"""Requests to a model server, as its settings say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from mempo.config.server import ServerSettings, base_url
from mempo.http.client import HttpClient
from mempo.http.secrets import key_of
from mempo.http.threads import wait_for

T = TypeVar("T")
Read = Callable[[dict[str, Any]], T]


MAX_REPLY_BYTES = 16 << 20
"""A longer reply is broken off and counts as one of the wrong form."""


class OpenAIClient:
    """Requests to `settings.url`. The key is read from the environment when the client is made, and kept in a header.

    `counts` tells requests (tries), retries and failures for good.

    Raises:
        UserError: a key that no header can hold.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.base = base_url(settings.url)
        key = key_of(settings.key_variable)
        headers = {"content-type": "application/json", "accept": "application/json"}
        self._http = HttpClient(
            "model server",
            self.base,
            settings.timeout_s,
            MAX_REPLY_BYTES,
            settings.max_concurrent,
            headers | ({} if key is None else {"authorization": f"Bearer {key}"}),
            secret=key,
        )
        self.counts = self._http.counts

    async def post(self, path: str, body: Mapping[str, Any], read: Read[T]) -> T:
        """`read(reply)` of a request with a JSON body. `read` raises ValueError for a reply of the wrong form.

        Raises:
            HttpError: no try succeeded, or one failed in a way that another cannot fix.
        """
        whole = {**body, **self.settings.extra}
        return await self._http.ask("POST", path, whole, lambda found: read(_object(found)), self.settings.retry)

    def post_now(self, path: str, body: Mapping[str, Any], read: Read[T]) -> T:
        """The same, for plain functions."""
        return wait_for(self.post(path, body, read))

    def get_now(self, path: str, read: Read[T]) -> T:
        return self._http.ask_now("GET", path, None, lambda found: read(_object(found)), self.settings.retry)

    def close(self) -> None:
        """Nothing is asked any more. Each event loop has closed its connections when it ended."""
        self._http.close()

    def __enter__(self) -> OpenAIClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _object(found: Any) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise ValueError("the reply is not a JSON object")
    return found
