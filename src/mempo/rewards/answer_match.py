"""Answer matching: normalisation, tokens, and the three metrics built on them (EM, F1, sub-EM).

Two normalisations, by name:

- `default`: NFKC, case folded, punctuation of any script and invisible characters removed, the articles a/an/the
  dropped unless nothing else is left, white space squeezed. On English text it equals `search-r1`.
- `search-r1`: the published one (Search-R1, after SQuAD): lower case, ASCII punctuation removed, a/an/the dropped,
  white space squeezed. It turns "A" and "The The" into nothing.

Whatever the normalisation, a text of which nothing is left matches nothing: not even another such text.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import NamedTuple

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_ARTICLE_WORDS = frozenset(("a", "an", "the"))
_ASCII_PUNCTUATION = frozenset(string.punctuation)
_DELETE_ASCII_PUNCTUATION = str.maketrans("", "", string.punctuation)
# Scripts written without spaces, a token per character: kana, bopomofo, Han, Hangul.
_CJK = re.compile(
    "([\u3005-\u3007\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u3105-\u312f\u31a0-\u31bf\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\U00020000-\U000323af])"
)


def _default(text: str) -> str:
    if text.isascii():  # the same, faster
        words = text.lower().translate(_DELETE_ASCII_NOISE).split()
        return " ".join([word for word in words if word not in _ARTICLE_WORDS] or words)
    # Folding can undo a composition, so the text is composed again after it.
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    kept = "".join(char for char in folded if not _is_noise(char))
    without_articles = _squeeze(_ARTICLES.sub(" ", kept))
    return without_articles or _squeeze(kept)


def _search_r1(text: str) -> str:
    return _squeeze(_ARTICLES.sub(" ", text.lower().translate(_DELETE_ASCII_PUNCTUATION)))


def _is_noise(char: str) -> bool:
    """Punctuation of any script, ASCII symbols (published scripts count them as punctuation), invisible characters."""
    if char in _ASCII_PUNCTUATION:
        return True
    category = unicodedata.category(char)
    return category[0] == "P" or category == "Cf" or (category == "Cc" and not char.isspace())


_DELETE_ASCII_NOISE = {code: None for code in range(128) if _is_noise(chr(code))}


def _squeeze(text: str) -> str:
    return " ".join(text.split())


NORMALIZERS: dict[str, Callable[[str], str]] = {"default": _default, "search-r1": _search_r1}


@lru_cache(maxsize=65536)
def normalize(text: str, variant: str = "default") -> str:
    """The form in which answers are compared.

    Raises:
        KeyError: `variant` is not one of `NORMALIZERS`.
    """
    return NORMALIZERS[variant](text)


def answer_tokens(text: str, variant: str = "default") -> list[str]:
    """The words of the normalised text, for F1; `default` takes CJK text character by character."""
    return _split_normal(normalize(text, variant), variant)


def _split_normal(normal: str, variant: str) -> list[str]:
    return (_CJK.sub(r" \1 ", normal) if variant == "default" and not normal.isascii() else normal).split()


def split_answer(text: str, separator: str = ";") -> list[str]:
    """The parts of an answer to several questions. Every character of the separator may also be its full-width form:
    Chinese and Japanese texts write `；`."""
    return [text[span] for span in split_spans(text, separator)]


def split_spans(text: str, separator: str) -> list[slice]:
    """Where the parts of `split_answer` stand."""
    edges = [0, *(edge for found in _separators(separator).finditer(text) for edge in found.span()), len(text)]
    return [slice(start, stop) for start, stop in zip(edges[::2], edges[1::2], strict=True)]


@cache
def _separators(separator: str) -> re.Pattern[str]:
    return re.compile("".join(f"[{re.escape(char)}{re.escape(_full_width(char))}]" for char in separator))


def _full_width(char: str) -> str:
    return chr(ord(char) + 0xFEE0) if "!" <= char <= "~" else char


class Match(NamedTuple):
    """How well a text fits an objective's aliases; see `exact_match`, `f1`, `sub_em`."""

    em: bool
    f1: float
    sub_em: bool


def match(prediction: str, aliases: str | Sequence[str], variant: str = "default") -> Match:
    """All three metrics at once."""
    gold = _gold(_as_aliases(aliases), variant)
    normal = normalize(prediction, variant)
    if normal and normal in gold.normals:
        return Match(True, 1.0, True)
    tokens = _split_normal(normal, variant)
    by_characters = variant == "search-r1"
    inside = any(alias in normal for alias in gold.normals if alias) if by_characters else False
    if gold.words.isdisjoint(tokens):
        return Match(False, 0.0, inside)
    best, predicted = 0.0, None if len(set(tokens)) == len(tokens) else Counter(tokens)
    for counts, part in zip(gold.counts, gold.tokens, strict=True):
        if predicted is None:
            common = sum([word in counts for word in tokens])
        else:
            common = sum(min(n, counts[word]) for word, n in predicted.items() if word in counts)
        if common:
            best = max(best, 2 * common / (len(tokens) + len(part)))
            # What is contained is common to both.
            inside = inside or (not by_characters and common == len(part) and _contains(tokens, part))
    return Match(False, best, inside)


def exact_match(prediction: str, aliases: str | Sequence[str], variant: str = "default") -> bool:
    """EM: equal to one of the aliases after normalisation. Empty never matches."""
    predicted = normalize(prediction, variant)
    return bool(predicted) and predicted in _gold(_as_aliases(aliases), variant).normals


def answers_given(answer: str | None, objectives: Sequence[Sequence[str]]) -> float:
    """The share of objectives of which an alias is a part of the answer (exact match after normalisation), whichever
    part; each part counts for one objective. More parts than objectives lower it, so that guessing cannot pay.

    With one objective the answer is one part.
    """
    if answer is None or not objectives:
        return 0.0
    parts = split_answer(answer) if len(objectives) > 1 else [answer]
    left, given = [part for part in parts if part.strip()], 0
    counted = max(len(left), len(objectives))
    for aliases in objectives:
        if (place := next((i for i, part in enumerate(left) if exact_match(part, aliases)), None)) is not None:
            del left[place]
            given += 1
    return given / counted


def says_one_of(text: str, aliases: Sequence[str]) -> bool:
    """An alias stands in the text as whole words (CJK: anywhere), compared as answers are."""
    within = _token_line(text)
    return any(line in within for alias in aliases if (line := _token_line(alias)).strip())


@lru_cache(maxsize=8192)  # the rollouts of a group ask and read much the same
def _token_line(text: str) -> str:
    return f" {' '.join(answer_tokens(text))} "


def f1(prediction: str, aliases: str | Sequence[str], variant: str = "default") -> float:
    """Token F1 in [0, 1] on multisets, against the alias that fits best; 0 when either side has no token."""
    return match(prediction, aliases, variant).f1


def sub_em(prediction: str, aliases: str | Sequence[str], variant: str = "default") -> bool:
    """Sub-EM (also called CEM): one of the aliases is contained in the prediction. Empty is contained in nothing.

    `default` looks for whole tokens, so "a" is not found in "banana"; `search-r1` looks for characters, as published.
    """
    return match(prediction, aliases, variant).sub_em


class _Gold(NamedTuple):
    """The aliases of an objective, made ready once: normal forms, tokens, and `words`, the tokens of all of them."""

    normals: frozenset[str]
    tokens: tuple[list[str], ...]
    counts: tuple[Counter[str], ...]
    words: frozenset[str]


@lru_cache(maxsize=65536)
def _gold(aliases: tuple[str, ...], variant: str) -> _Gold:
    tokens = tuple(answer_tokens(alias, variant) for alias in aliases)
    return _Gold(
        normals=frozenset(normalize(alias, variant) for alias in aliases),
        tokens=tokens,
        counts=tuple(Counter(words) for words in tokens),
        words=frozenset(word for words in tokens for word in words),
    )


def _contains(tokens: list[str], part: list[str]) -> bool:
    n = len(part)
    return n > 0 and any(tokens[i : i + n] == part for i in range(len(tokens) - n + 1))


def _as_aliases(aliases: str | Sequence[str]) -> tuple[str, ...]:
    # A bare string is one alias, not a sequence of one-letter ones.
    return (aliases,) if isinstance(aliases, str) else tuple(aliases)
