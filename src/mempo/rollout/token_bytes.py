"""Where tokens begin in a text that has broken letters: the bytes of every token, cut into letters once.

Most texts never come here: where every token is whole letters, their lengths say it all (`Tokenizer.decode_spans`).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate, groupby

BROKEN = "\ufffd"
"""Stands in a text for bytes that are no whole letter."""

_FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")
_LETTER = re.compile(
    rb"[\xc2-\xdf][\x80-\xbf]?|\xe0(?:[\xa0-\xbf][\x80-\xbf]?)?|[\xe1-\xec\xee\xef][\x80-\xbf]{0,2}"
    rb"|\xed(?:[\x80-\x9f][\x80-\xbf]?)?|\xf0(?:[\x90-\xbf][\x80-\xbf]{0,2})?|[\xf1-\xf3][\x80-\xbf]{0,3}"
    rb"|\xf4(?:[\x80-\x8f][\x80-\xbf]{0,2})?|.",
    re.DOTALL,
)
"""A letter of UTF-8, or as much of one as is there: what decoders replace by one broken letter."""


def _byte_letters() -> dict[str, int]:
    """The letters that byte-level vocabularies write bytes as: itself where it can be printed, else one from 256 on."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + k): byte for k, byte in enumerate(hidden)}


_BYTES = _byte_letters()

Starts = tuple[str, list[int], set[int]]
"""Text, the letter that each token starts at or goes on with `[tokens]`, and the letters before which a token ends."""


def byte_level_starts(tokens: Sequence[str]) -> Starts:
    """For byte-level vocabularies, where the bytes of all tokens follow one another."""
    return _cut([_bytes_of(token) for token in tokens])


def fallback_starts(tokens: Sequence[str], piece: Callable[[int], str]) -> Starts:
    """For vocabularies that write unknown letters as byte tokens (`<0xE6>`): a run of them is letters, or, when any of
    it is broken, one broken letter for each. `piece(k)`: the text of token k, where that is another kind of token."""
    parts: list[str] = []
    starts: list[int] = []
    edges, place = {0}, 0
    numbered = [(k, _FALLBACK.fullmatch(token)) for k, token in enumerate(tokens)]
    for in_bytes, run in groupby(numbered, key=lambda item: item[1] is not None):
        if in_bytes:
            data = [bytes([int(match[1], 16)]) for _, match in run if match]
            found = _cut(data)
            if b"".join(data).decode(errors="ignore") != found[0]:
                found = BROKEN * len(data), list(range(len(data))), set(range(len(data) + 1))
        else:
            pieces = [piece(k) for k, _ in run]
            ends = list(accumulate(map(len, pieces), initial=0))
            found = "".join(pieces), ends[:-1], set(ends)
        parts.append(found[0])
        starts += [place + start for start in found[1]]
        edges |= {place + edge for edge in found[2]}
        place += len(found[0])
    return "".join(parts), starts, edges


def _bytes_of(token: str) -> bytes:
    found = [_BYTES.get(letter) for letter in token]
    # A token that is not written in these letters stands for itself, as in the decoder of the library.
    return token.encode() if None in found else bytes(byte for byte in found if byte is not None)


def _cut(tokens: Sequence[bytes]) -> Starts:
    data = b"".join(tokens)
    firsts = [match.start() for match in _LETTER.finditer(data)] + [len(data)]
    offsets = list(accumulate(map(len, tokens), initial=0))
    starts = [bisect_right(firsts, offset) - 1 for offset in offsets]
    edges = {start for start, offset in zip(starts, offsets, strict=True) if firsts[start] == offset}
    return data.decode(errors="replace"), starts[:-1], edges
