"""Lists and objects that a file holds as text: `"['Paris', 'City of Light']"`, `'{"target": ["Paris"]}'`.

They come about when a table is saved as CSV, or a nested column as a string: as JSON, as Python writes a list, or as
NumPy prints an array, without commas. Nothing is evaluated: strings, numbers and brackets are all that is read.
"""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
from itertools import pairwise
from typing import Any

_CLOSING = {"[": "]", "{": "}", "(": ")"}
_BEGUN = re.compile(r"""[\[{]+\s*["']|array\(""")
"""How a written-out list begins, and hardly a title does."""
_NO_TEXT = (tokenize.NEWLINE, tokenize.NL, tokenize.ENDMARKER)
_UNREADABLE = (ValueError, SyntaxError, tokenize.TokenError, RecursionError, MemoryError)


def read_written(value: Any) -> Any:
    """The list or object that a text spells out. Whatever else it is given comes back as it is, `[sic]` too.

    Raises:
        ValueError: the text begins like a written-out list and cannot be read as one, or it may be a range.
    """
    if not isinstance(value, str):
        return value
    text = value.strip()
    begun = bool(_BEGUN.match(text))
    if not begun and (len(text) < 2 or text[-1] != _CLOSING.get(text[0])):
        return value
    for read in (json.loads, _printed, _literal):
        try:
            found = read(text)
        except _UNREADABLE:
            continue
        if isinstance(found, list) and found and all(type(item) in (int, float) for item in found):
            return _numbers(found, text)
        if isinstance(found, list | dict):
            return found
    if begun:
        raise ValueError(f"the answer looks like a list written as text and cannot be read: {text[:60]!r}")
    return value


def _numbers(found: list[Any], text: str) -> list[str]:
    if len(found) > 1:
        raise ValueError(f"the answer {text[:60]!r} may be one (a range) or several; write a list of texts")
    return [str(found[0])]


def _printed(text: str) -> Any:
    """Nested lists of strings in quotes, with or without commas between them."""
    stack: list[list[Any]] = [[]]
    for token in _tokens(text):
        if token.type == tokenize.STRING:
            stack[-1].append(ast.literal_eval(token.string))
        elif token.string == "[":
            stack.append([])
        elif token.string == "]" and len(stack) > 1:
            done = stack.pop()
            stack[-1].append(done)
        elif token.string != "," and token.type not in _NO_TEXT:
            raise ValueError(f"{token.string!r} is not a string")
    if len(stack) > 1 or len(stack[0]) != 1:
        raise ValueError("not one list")
    return stack[0][0]


def _literal(text: str) -> Any:
    """What Python writes for lists, tuples and objects."""
    tokens = _tokens(text)
    if any(one.type == other.type == tokenize.STRING for one, other in pairwise(tokens)):
        raise ValueError("Python would join two strings that have no comma between them")
    found = ast.literal_eval(text)
    return list(found) if isinstance(found, tuple) else found


def _tokens(text: str) -> list[tokenize.TokenInfo]:
    return list(tokenize.generate_tokens(io.StringIO(text.replace("\n", " ")).readline))
