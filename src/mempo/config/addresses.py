"""Addresses of servers in settings and on the command line. They are written into run folders and printed in errors, so
they hold no password; one that does is refused, and nothing shows it."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlsplit

_NAMES = r"[^=&?#\s'\"]*(?:key|token|secret|passw|pwd|auth|credential|signature)[^=&?#\s'\"]*"
_SECRET_NAME = re.compile(_NAMES, re.IGNORECASE)
_SECRETS = (
    re.compile(r"(//)[^\s'\"]*(?=@)"),
    re.compile(r"()(?<![^\s'\"=])[^\s'\"/:@=]+:(?!//)[^\s'\"@]+(?=@)"),
    re.compile(rf"([?&]{_NAMES}=)[^&#\s'\"]+", re.IGNORECASE),
)


def server_address(url: str, what: str, example: str, variable: str) -> str:
    """The address, without outer white space and without a slash at its end. `what` names the server in an error,
    `variable` the environment variable that its key belongs into.

    Raises:
        ValueError: no http address, or one that holds a user, a password, a query or a fragment.
    """
    text = url.strip().rstrip("/")
    refuse_credentials(text, what, variable)
    if not is_http(text) or "?" in text or "#" in text:
        raise ValueError(f"{what} {url!r} is not an address of a server; write it as {example}")
    return text


def is_http(url: str) -> bool:
    """Whether a client can ask the url as it stands."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return usable and url.isascii() and url.isprintable() and " " not in url


def refuse_credentials(url: str, what: str, variable: str) -> None:
    """Raises ValueError when the url holds a user, a password, or a part of its query that is named like a key; the
    message does not repeat it."""
    before, slashes, rest = url.partition("//")
    authority = re.split(r"[/?#\\]", rest if slashes else before, maxsplit=1)[0]
    names = [name for name, _ in parse_qsl(url.partition("?")[2], keep_blank_values=True)]
    if "@" in authority or any(map(_SECRET_NAME.search, names)):
        raise ValueError(
            f"{what}: the address holds a user, a password or a key, and addresses are written into run folders and "
            f"messages; take it out, and put the key into the environment variable {variable}"
        )


def masked(text: str) -> str:
    """A message that may repeat an address, without the user, the password or the key in it."""
    for pattern in _SECRETS:
        text = pattern.sub(r"\1[redacted]", text)
    return text
