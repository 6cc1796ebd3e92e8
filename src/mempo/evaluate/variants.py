"""Published scorers by name, restated: what they count, edge cases included.

- `search-r1` (`em`, `sub_em`): lower case, ASCII punctuation deleted, a/an/the dropped, white space squeezed; equal to
  an alias, or containing one.
- `mem1` (`em`, `f1`): punctuation becomes spaces, articles stay; F1 on token **sets**; **summed** over the objectives
  (0 to k); another number of answers than objectives is 0.
- `asearcher` (`em`, `cem`, `f1`, `reward`): EM as Search-R1; CEM: every gold token is a token of the answer; F1 on sets
  after MEM1's normalisation, Chinese per character; reward: 0.7·F1 + 0.3·max(F1, F1 on `aug_answer`).

They are kept as published: an answer of which normalisation leaves nothing equals a gold of which it leaves nothing,
and is inside every answer. The scores that this library trains and reports on (`mempo.text`) do neither.

The scripts of Search-R1 and ASearcher know one objective. With several, the answer is split on `;`, the counts must
agree, and the mean over the objectives is taken; `em` and `sub_em` of `search-r1` are 1 only when all are.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from mempo.text import NORMALIZERS

Objectives = Sequence[Sequence[str]]  # [objectives][aliases]
Variant = Callable[[str, Objectives, Mapping[str, Any]], dict[str, float]]

_CHINESE = re.compile("[\u4e00-\u9fff]")
_TO_SPACES = str.maketrans(dict.fromkeys(string.punctuation, " "))
_BOOLEAN = {"True": "yes", "False": "no"}


@lru_cache(maxsize=65536)
def deleted(text: str) -> str:
    """Search-R1's normal form."""
    return NORMALIZERS["search-r1"](text)


@lru_cache(maxsize=65536)
def spaced(text: str) -> str:
    """MEM1's and ASearcher's normal form: punctuation is replaced by spaces, articles stay."""
    return " ".join(text.lower().translate(_TO_SPACES).split())


def set_f1(predicted: frozenset[str], gold: frozenset[str]) -> float:
    """F1 on sets of tokens; 0 when either is empty."""
    common = len(predicted & gold)
    return 2 * common / (len(predicted) + len(gold)) if common else 0.0


def search_r1(answer: str, objectives: Objectives, meta: Mapping[str, Any]) -> dict[str, float]:
    parts = _parts(answer, objectives)
    if parts is None:
        return {"em": 0.0, "sub_em": 0.0}
    pairs = [(deleted(part), [deleted(alias) for alias in aliases]) for part, aliases in parts]
    return {
        "em": float(all(part in golds for part, golds in pairs)),
        "sub_em": float(all(any(gold in part for gold in golds) for part, golds in pairs)),
    }


def mem1(answer: str, objectives: Objectives, meta: Mapping[str, Any]) -> dict[str, float]:
    pieces = answer.lower().strip().split(";")  # also with one objective, as published
    if len(pieces) != len(objectives):
        return {"em": 0.0, "f1": 0.0}
    em = f1 = 0.0
    for piece, aliases in zip(pieces, objectives, strict=True):
        said, golds = spaced(piece), [spaced(alias) for alias in aliases]
        em += said in golds
        f1 += max((set_f1(_words(said), _words(gold)) for gold in golds), default=0.0)
    return {"em": em, "f1": f1}


def asearcher(answer: str, objectives: Objectives, meta: Mapping[str, Any]) -> dict[str, float]:
    parts = _parts(answer, objectives)
    if parts is None:
        return {"em": 0.0, "cem": 0.0, "f1": 0.0, "reward": 0.0}
    k = len(objectives)
    em = sum(deleted(part) in [deleted(alias) for alias in aliases] for part, aliases in parts) / k
    cem = sum(any(_covers(part, alias) for alias in aliases) for part, aliases in parts) / k
    f1s = [max((asearcher_f1(part, alias) for alias in aliases), default=0.0) for part, aliases in parts]
    more = augmented(meta, k)
    best = [
        max(f1, *(asearcher_f1(part, alias) for alias in aliases), 0.0)
        for f1, (part, _), aliases in zip(f1s, parts, more, strict=True)
    ]
    return {"em": em, "cem": cem, "f1": sum(f1s) / k, "reward": 0.7 * sum(f1s) / k + 0.3 * sum(best) / k}


def asearcher_f1(answer: str, gold: str) -> float:
    """A gold answer in Chinese is taken character by character, and the answer with it."""
    said, wanted = spaced(_BOOLEAN.get(answer, answer)), spaced(_BOOLEAN.get(gold, gold))
    if _CHINESE.search(wanted):
        return set_f1(_characters(said), _characters(wanted))
    return set_f1(_words(said), _words(wanted))


def augmented(meta: Mapping[str, Any], objectives: int) -> list[list[str]]:
    """The `aug_answer` of a question `[objectives][aliases]`; a flat one belongs to a question of one objective."""
    found = meta.get("aug_answer") or []
    found = [found] if isinstance(found, str) else list(found)
    if found and all(isinstance(alias, str) for alias in found):
        found = [found]
    shaped = [[a for a in ([x] if isinstance(x, str) else x or []) if isinstance(a, str)] for x in found]
    return shaped if len(shaped) == objectives else [[] for _ in range(objectives)]


VARIANTS: dict[str, Variant] = {"search-r1": search_r1, "mem1": mem1, "asearcher": asearcher}
MEASURES: dict[str, tuple[str, ...]] = {
    "search-r1": ("em", "sub_em"),
    "mem1": ("em", "f1"),
    "asearcher": ("em", "cem", "f1", "reward"),
}

SUMMED = frozenset(f"mem1/{measure}" for measure in MEASURES["mem1"])
"""Measures that are summed over the objectives, so that they lie between 0 and k."""


def variant_scores(
    name: str, answer: str | None, objectives: Objectives, meta: Mapping[str, Any] | None = None
) -> dict[str, float]:
    """Measures of one published scorer; without an answer all are 0.

    Raises:
        KeyError: `name` is not one of `VARIANTS`.
    """
    if answer is None:
        return dict.fromkeys(MEASURES[name], 0.0)
    return VARIANTS[name](answer.strip(), objectives, meta or {})


def _parts(answer: str, objectives: Objectives) -> list[tuple[str, Sequence[str]]] | None:
    """Each part of the answer with the aliases of its objective; None when the counts differ."""
    pieces = [answer] if len(objectives) == 1 else [piece.strip() for piece in answer.split(";")]
    return list(zip(pieces, objectives, strict=True)) if len(pieces) == len(objectives) else None


def _covers(answer: str, gold: str) -> bool:
    """Every token of the gold is a token of the answer. Splitting on single spaces makes "" a token, as published."""
    said = deleted(_BOOLEAN.get(answer, answer)).split(" ")
    return all(token in said for token in deleted(_BOOLEAN.get(gold, gold)).split(" "))


@lru_cache(maxsize=65536)
def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


@lru_cache(maxsize=65536)
def _characters(text: str) -> frozenset[str]:
    """Characters one by one, without Chinese commas and full stops; a number stays whole."""
    return frozenset(re.findall("[0-9]+|[^\\s，。]", text))
