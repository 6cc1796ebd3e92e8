"""Words and facts of a text in any script, without a world model.

    words   runs of letters and digits (NFKC, case folded), English function words and the vocabulary of note taking
            ("found", "still", "need") left out
    facts   those of them that look like names or values: a capital letter, a digit, CJK text, or a script that has no
            capitals

A heuristic: the right name on the wrong entity passes, a paraphrased name does not. Han and katakana runs are cut at
function characters, hiragana is grammar, Hangul words lose a final particle. Thai, Lao, Khmer and Burmese runs are no
facts, since nothing here cuts them into words.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache

_HAN = "\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
_KATAKANA = "\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff"
_HANGUL = "\uac00-\ud7a3"
_HIRAGANA = "\u3041-\u3096\u309d-\u309f"
_UNCUT = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]")  # no spaces, and nothing here that cuts them
_CUT = "的是了在和与與及或被把从從对對为為而也不"
_UNSPACED = re.compile(f"[{_HAN}]+|[{_KATAKANA}]+|[{_HANGUL}]+")
_SPACELESS = re.compile(f"[{_HAN}{_KATAKANA}{_HANGUL}{_HIRAGANA}]+")
_PARTICLES = frozenset("은는이가을를의에와과도로만")
_ASCII_PIECE = re.compile(r"[0-9A-Za-z]+(?:(?:(?<=[0-9])[.,](?=[0-9])|['-])[0-9A-Za-z]+)*")  # as `_pieces`, faster
_CACHED_TEXTS = 8192  # the rollouts of a group ask and read much the same
_POSSESSIVE = re.compile(r"['’]s$")

_FUNCTION_WORDS = """
a an the and or but nor not no yes of in on at by to from for with without about as into over under than then so if is
are was were be been being am it its this that these those there here he she they we i you his her their our my your him
them us me who whom whose which what when where why how do does did done have has had having can could will would shall
should may might must also only just more most less least very each every all any some such same other another both
between after before during while because since until per via up out off one
"""
# What notes say about themselves.
_NOTE_WORDS = """
know known unknown need needs needed find finds found search searching searched searches look looking looked query
queries question questions answer answers information info note notes still next yet far open todo none nothing
remaining missing step result results fact facts memory gathered confirmed according based currently current
"""
FUNCTION_WORDS = frozenset(f"{_FUNCTION_WORDS} {_NOTE_WORDS}".split())


@dataclass(frozen=True)
class Word:
    """`text` is case folded. `is_fact`: it looks like a name or a value."""

    text: str
    is_fact: bool


@dataclass(frozen=True)
class Seen:
    """Texts that facts are looked for in: `spaced`, the words of each text; `unspaced`, all CJK text, where a fact may
    stand anywhere."""

    spaced: tuple[frozenset[str], ...]
    unspaced: str

    def holds(self, fact: str) -> bool:
        if any(fact in words for words in self.spaced):
            return True
        return bool(_UNSPACED.fullmatch(fact)) and fact in self.unspaced


def words_of(text: str) -> list[Word]:
    """Content words in order, repetitions kept."""
    text = unicodedata.normalize("NFKC", text)
    found = []
    for piece in _pieces(text):
        folded = _fold(piece)
        if _is_spaceless(piece):
            found += [Word(part, True) for part in _unspaced_parts(piece)]
        elif folded and folded not in FUNCTION_WORDS:
            found.append(Word(folded, any(map(_marks_a_fact, piece))))
    return found


def facts_of(text: str, question: str = "") -> tuple[str, ...]:
    """Distinct facts of a text in order of appearance; what the question itself says is none."""
    asked = seen_in([question])
    return tuple(dict.fromkeys(word.text for word in words_of(text) if word.is_fact and not asked.holds(word.text)))


def seen_in(texts: Iterable[str]) -> Seen:
    parts = [_seen(text) for text in texts]
    return Seen(tuple(words for words, _ in parts), "\n".join(unspaced for _, unspaced in parts))


@lru_cache(maxsize=_CACHED_TEXTS)
def _seen(text: str) -> tuple[frozenset[str], str]:
    if text.isascii():
        return frozenset(map(_fold, set(_ASCII_PIECE.findall(text)))), ""
    pieces = _pieces(unicodedata.normalize("NFKC", text))
    spaced = frozenset(_fold(piece) for piece in pieces if not _is_spaceless(piece))
    return spaced, "\n".join(piece for piece in pieces if _is_spaceless(piece))


@lru_cache(maxsize=_CACHED_TEXTS)
def squeezed(text: str) -> str:
    """The form in which two notes or two queries are the same."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _fold(piece: str) -> str:
    folded = piece.lower() if piece.isascii() else unicodedata.normalize("NFKC", piece.casefold())
    if folded.endswith("s"):
        folded = _POSSESSIVE.sub("", folded)
    return folded.replace(",", "") if folded[:1].isdigit() else folded


def _is_spaceless(piece: str) -> bool:
    return not piece.isascii() and bool(_SPACELESS.match(piece))  # a piece is all of one kind


@cache
def _piece_pattern() -> re.Pattern[str]:
    """Runs of letters, marks and digits; CJK runs apart; `'`, `’` and `-` inside words, `.` and `,` inside numbers."""
    marks = "".join(chr(i) for i in range(0x300, 0x1F000) if unicodedata.category(chr(i))[0] == "M")
    spaceless = f"{_HAN}{_KATAKANA}{_HANGUL}{_HIRAGANA}"
    char = rf"(?:[^\W_{spaceless}]|[{re.escape(marks)}])"  # marks are no \w: they are part of their letter all the same
    run = rf"(?:[^\W_{spaceless}]+|[{re.escape(marks)}]+)+"
    return re.compile(rf"[{spaceless}]+|{run}(?:(?:(?<=\d)[.,](?=\d)|['’\-‐](?={char})){run})*")


def _pieces(text: str) -> list[str]:
    return _piece_pattern().findall(text)


def _marks_a_fact(char: str) -> bool:
    return char.isupper() or char.isdigit() or (unicodedata.category(char) == "Lo" and not _UNCUT.match(char))


def _unspaced_parts(piece: str) -> list[str]:
    parts = []
    for match in _UNSPACED.finditer(piece):
        run = match.group()
        if "\uac00" <= run[0] <= "\ud7a3":
            parts.append(run[:-1] if len(run) > 2 and run[-1] in _PARTICLES else run)
        else:
            parts += [part for part in re.split(f"[{_CUT}]", run) if part]
    return parts
