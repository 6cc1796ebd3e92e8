"""Errors that are the user's to fix: the command line prints their message alone, without a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something that the user can fix. The message says the fact, the numbers and the remedy."""


class ConfigError(UserError):
    """A configuration that cannot be run as it is."""


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint such as `; did you mean 'lr'?`, or the empty string when nothing is close."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def counted(number: int, noun: str) -> str:
    """`1 question`, `2 questions`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
