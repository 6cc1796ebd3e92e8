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


class OpenAIClient(HttpClient):
    """Requests to `settings.url`. The key is read from the environment when the client is made, and kept in a header.

    Raises:
        UserError: a key that no header can hold.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        base, key = base_url(settings.url), key_of(settings.key_variable)
        super().__init__("model server", base, settings.timeout_s, MAX_REPLY_BYTES, settings.max_concurrent, token=key)

    async def post(self, path: str, body: Mapping[str, Any], read: Read[T]) -> T:
        """`read(reply)` of a request with a JSON body. `read` raises ValueError for a reply of the wrong form.

        Raises:
            HttpError: no try succeeded, or one failed in a way that another cannot fix.
        """
        whole = {**body, **self.settings.extra}
        return await self.ask("POST", path, whole, lambda found: read(_object(found)), self.settings.retry)

    def post_now(self, path: str, body: Mapping[str, Any], read: Read[T]) -> T:
        """The same, for plain functions."""
        return wait_for(self.post(path, body, read))

    def get_now(self, path: str, read: Read[T]) -> T:
        return self.ask_now("GET", path, None, lambda found: read(_object(found)), self.settings.retry)


def _object(found: Any) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise ValueError("the reply is not a JSON object")
    return found
