"""Text from outside, as it is shown: invisible characters made visible, gold answers marked, two notes compared."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Sequence

Piece = tuple[str, str]
"""A kind (`""`: plain) and a text."""

_WORDS = re.compile(r"\s+|\w+|[^\w\s]")
_MAX_DIFF_WORDS = 3000


def visible(text: str) -> str:
    """Control characters, bidirectional ones, zero-width ones and lone surrogates as `⟨U+202E⟩`: they would reorder or
    hide what stands beside them, or be obeyed by a terminal. Line feeds and tabs stay."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if _is_shown(char) else f"⟨U+{ord(char):04X}⟩" for char in text)


def _is_shown(char: str) -> bool:
    # Cc: control, Cf: format (bidirectional, zero-width, tags), Cs: surrogates, Zl and Zp: ends of lines in disguise.
    return char in "\n\t" or unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Zl", "Zp")


def one_line(text: str, chars: int) -> str:
    """The beginning of a text, on one line."""
    joined = " ".join(visible(text[: 4 * chars]).split())
    return joined if len(joined) <= chars else f"{joined[: chars - 1]}…"


def marked(text: str, answers: Sequence[str]) -> list[Piece]:
    """The text in pieces, gold answers of kind `gold`: whole words, in either case."""
    wanted = sorted({answer.strip() for answer in answers if answer.strip()}, key=len, reverse=True)
    if not wanted:
        return [("", visible(text))]
    pattern = re.compile(r"(?<!\w)(" + "|".join(map(re.escape, wanted)) + r")(?!\w)", re.IGNORECASE)
    # Every second part is a match.
    parts = enumerate(pattern.split(text))
    return [("gold" if i % 2 else "", visible(part)) for i, part in parts if part]


def changes(old: str | None, new: str) -> list[Piece]:
    """The new text and what went of the old one, word by word: kinds `ins`, `del` and `""`. `old` None: nothing to
    compare with."""
    if old is None:
        return [("", visible(new))]
    before, after = _WORDS.findall(old), _WORDS.findall(new)
    if len(before) + len(after) > _MAX_DIFF_WORDS:  # quadratic, and nobody reads a difference of that size
        return [("", visible(new))]
    pieces: list[Piece] = []
    for change, i, j, k, m in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if change == "equal":
            pieces.append(("", visible("".join(after[k:m]))))
            continue
        pieces += [("del", visible("".join(before[i:j])))] if j > i else []
        pieces += [("ins", visible("".join(after[k:m])))] if m > k else []
    return pieces
