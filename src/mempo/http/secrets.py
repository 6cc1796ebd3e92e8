"""Keys and tokens: read from the environment, sent in a header, and taken out of everything that a server sends back.

Servers echo what they were sent, in errors and in answers. A reply is cleaned where it arrives, before anybody has read
it: so a key stands in no error, no observation, no prompt and no file.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator

from mempo.errors import UserError

HIDDEN = "[redacted]"

_SHORTEST_CHARS = 4
_PLACEHOLDERS = frozenset({"dummy", "empty", "lm-studio", "none", "null", "ollama", "test", "token"})
"""Keys that stand for no key, in the manuals of servers. Taking them, or shorter ones, out would spoil texts."""
_SHORTEST_BASE64 = 5
_BEARER = re.compile(rb"(?i)(bearer\s+)[^\s\"',}]+")
_NAMED = {"&": b"&amp;", "<": b"&lt;", ">": b"&gt;", '"': b"&quot;", "'": b"&apos;"}


def key_of(variable: str) -> str | None:
    """The key in an environment variable, None where there is none. Raises UserError when no header can hold it."""
    key = os.environ.get(variable, "").strip()
    if key and not (key.isascii() and key.isprintable() and " " not in key):
        raise UserError(f"{variable} holds characters that no HTTP header can carry; use visible ASCII without spaces")
    return key or None


def required_key(variable: str, what: str) -> str:
    """The same, where a service cannot be asked without one. Raises UserError."""
    key = key_of(variable)
    if key is None:
        raise UserError(f"{what} needs a key; put it into the environment variable {variable}")
    return key


class Redactor:
    """Takes a secret out of texts, however common software writes it: as it is, escaped as in JSON, HTML or a url, in
    hexadecimal, or in base64, also as a part of what was encoded (`user:secret`)."""

    def __init__(self, secret: str | None) -> None:
        known = secret is not None and len(secret) >= _SHORTEST_CHARS and secret.lower() not in _PLACEHOLDERS
        # One by one they are found many times faster than as one pattern.
        self._patterns = tuple(map(re.compile, _forms(secret))) if known and secret is not None else ()

    def body(self, body: bytes) -> bytes:
        for pattern in self._patterns:
            body = pattern.sub(HIDDEN.encode(), body)
        return body

    def message(self, text: bytes) -> bytes:
        """For errors: whatever else stands behind `Bearer` goes as well."""
        return _BEARER.sub(rb"\1" + HIDDEN.encode(), self.body(text))


def _forms(secret: str) -> Iterator[bytes]:
    spelled = b"".join(map(_spelled, secret))
    yield rb"(?<![0-9.])%b(?![0-9])" % spelled if secret.isdigit() else spelled  # a part of a number is none of it
    hexadecimal = secret.encode().hex()
    yield from {hexadecimal.encode(), hexadecimal.upper().encode()}
    for before in range(3):
        # Of base64, those characters that do not depend on what stands around the secret.
        encoded = base64.b64encode(bytes(before) + secret.encode())
        core = encoded[(8 * before + 5) // 6 : 8 * (before + len(secret)) // 6]
        if len(core) >= _SHORTEST_BASE64:
            yield re.escape(core).replace(rb"\+", rb"(?:[+\-]|%2[bB])").replace(b"/", rb"(?:[/_]|\\/|%2[fF])")


def _spelled(char: str) -> bytes:
    """A character and its escapes. All repetitions are bounded, so that no text takes more than linear time, and all
    forms begin with a character of their own, by which they are found quickly."""
    code, plain = ord(char), re.escape(char.encode())
    hexadecimal = b"(?i:%02x)" % code
    forms = [
        plain,
        b"%(?:25){0,3}" + hexadecimal,
        rb"\\\\{0,3}u00" + hexadecimal,
        b"&#(?:0{0,6}%d|[xX]0{0,6}%b);" % (code, hexadecimal),
    ]
    forms += [_NAMED[char]] if char in _NAMED else []
    forms += [rb"\\\\{0,3}" + plain] if char in '"\\/' else []
    return b"(?:%b)" % b"|".join(forms)
