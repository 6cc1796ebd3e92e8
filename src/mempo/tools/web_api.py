"""One request to a service on the web that is asked with a key: bounded, timed, and every failure told."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import Any

import httpx

from mempo.config.tools import WebApiSettings
from mempo.errors import UserError
from mempo.retrieval.errors import body_head
from mempo.tools.web_errors import WebError, is_retried


class WebApi:
    """Safe to use from threads; they share one pool of connections. Keys are in headers, which no message shows."""

    def __init__(self, settings: WebApiSettings) -> None:
        self._settings = settings
        self._client = httpx.Client(timeout=settings.timeout_s, follow_redirects=False)

    def ask(self, method: str, url: str, headers: Mapping[str, str], body: Any = None) -> bytes:
        """The reply's body. Raises WebError."""
        until = time.monotonic() + self._settings.timeout_s
        allowed = self._settings.max_reply_bytes
        content = None if body is None else json.dumps(body).encode()
        try:
            with self._client.stream(method, url, content=content, headers=dict(headers)) as response:
                parts, size = list[bytes](), 0
                for part in response.iter_bytes():
                    parts.append(part)
                    size += len(part)
                    if time.monotonic() > until:
                        raise httpx.ReadTimeout("the reply did not end")
                    if size > allowed:
                        raise WebError(url, f"the reply is longer than {allowed} bytes", transient=False)
        except httpx.TimeoutException:
            raise WebError(url, f"no answer within {self._settings.timeout_s:g} s", transient=True) from None
        except httpx.InvalidURL as error:
            raise WebError(url, f"no address ({error})", transient=False) from None
        except httpx.HTTPError as error:
            raise WebError(url, f"no connection ({error})", transient=True) from None
        reply, status = b"".join(parts), response.status_code
        if response.is_success:
            return reply
        wait = response.headers.get("retry-after", "")
        reason = f"HTTP {status}, first bytes: {body_head(reply) or '(empty body)'}"
        raise WebError(url, reason, is_retried(status), float(wait) if wait.isdecimal() else None)


def key_of(variable: str) -> str | None:
    """The key in an environment variable, None where there is none. Raises UserError when no header can hold it."""
    key = os.environ.get(variable, "").strip()
    if key and not (key.isascii() and key.isprintable()):
        raise UserError(f"{variable} holds characters that no HTTP header can carry")
    return key or None


def required_key(variable: str, what: str) -> str:
    key = key_of(variable)
    if key is None:
        raise UserError(f"{what} needs a key; put it into the environment variable {variable}")
    return key


def web_json(url: str, reply: bytes) -> Any:
    """Raises WebError when the reply is not JSON."""
    try:
        return json.loads(reply)
    except (ValueError, RecursionError):
        raise WebError(url, f"the reply is not JSON, first bytes: {body_head(reply)}", transient=True) from None
