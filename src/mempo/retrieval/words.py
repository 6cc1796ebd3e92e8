"""The lexical tokeniser: words of any script, the same for documents and queries."""

from __future__ import annotations

import re
import sys
import unicodedata
from functools import cache

from mempo.retrieval.errors import IndexFolderError

NAME = "unicode-words-1"
"""Written into every index: a change of the rules below must change it, and old indexes are then refused."""

# Scripts written without spaces, a token per character: kana (without the middle dot), bopomofo, Han, Hangul.
_CJK = (
    "\u3005-\u3007\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u3105-\u312f\u31a0-\u31bf\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\U00020000-\U000323af"
)
_ASCII_WORD = re.compile(r"[a-z0-9]+")


def words(text: str) -> list[str]:
    """The words of a text, in order: NFKC, case folded, letters and digits kept together, CJK one by one.

    Nothing is stemmed and no stop words are removed, so a query of common words still finds something. Any string is
    accepted: NUL, lone surrogates and punctuation separate words.
    """
    if text.isascii():
        return _ASCII_WORD.findall(text.lower())
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return _word().findall(folded)


def refuse_other(tokeniser: object, what: str) -> None:
    """Raises IndexFolderError when an index was made with words cut by other rules."""
    if tokeniser != NAME:
        raise IndexFolderError(
            f"{what} was made with tokeniser {tokeniser!r}, this version has {NAME!r}; build it again"
        )


@cache
def _word() -> re.Pattern[str]:
    # Python's \w leaves out combining marks, which would cut Devanagari or Thai words at every vowel sign.
    return re.compile(f"[{_CJK}]|(?:[^\\W_{_CJK}]|[{_marks()}])+")


def _marks() -> str:
    runs: list[list[int]] = []
    for code in range(0x300, min(sys.maxunicode, 0x1FFFF)):
        if unicodedata.category(chr(code))[0] != "M":
            continue
        if runs and runs[-1][1] == code - 1:
            runs[-1][1] = code
        else:
            runs.append([code, code])
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in runs)
