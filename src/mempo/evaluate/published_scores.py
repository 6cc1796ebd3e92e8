"""Published scorers by name, restated: what they count, edge cases included.

- `search-r1` (`em`, `sub_em`; `qa_em.py`): lower case, ASCII punctuation deleted, a/an/the dropped, white space
  squeezed; equal to an alias, or containing one.
- `hotpotqa` (`em`, `f1`; `hotpot_evaluate_v1.py`): EM as Search-R1; F1 on multisets of the same normal form, 0 where
  one side alone is `yes`, `no` or `noanswer`.
- `flashrag` (`em`, `acc`, `f1`; `flashrag/evaluator/metrics.py`): the same EM and F1 against the alias that fits best;
  `acc`: contains an alias. Its regular expressions for CuratedTREC are not here.
- `mem1` (`em`, `f1`; `inference/eval.py`): punctuation becomes spaces, articles stay; F1 on token **sets**; **summed**
  over the objectives (0 to k); another number of answers than objectives is 0.
- `asearcher-train` (`em`, `cem`, `f1`, `reward`; `ASearcher/utils/rewards.py`): `True` and `False` are `yes` and `no`
  everywhere. EM as Search-R1; CEM: every gold token is a token of the answer; F1 on sets, punctuation becoming spaces,
  a Chinese gold answer by the character; reward: 0.7·F1 + 0.3·max(F1, F1 on `aug_answer`). `asearcher` is the same.
- `asearcher-eval` (`em`, `cem`, `f1`; `evaluation/evaluate.py`): `True` and `False` are mapped in CEM alone, and
  Chinese is not taken apart.

They are kept as published: an answer of which normalisation leaves nothing equals a gold of which it leaves nothing,
and is inside every answer. The scores that this library trains and reports on do neither.

But for MEM1's, the scripts know one objective. With several, the answer is split as ours are, the counts
must agree, and the mean over the objectives is taken; `em`, `sub_em` and `acc` of `search-r1`, `hotpotqa` and
`flashrag` are 1 only when all are.
"""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any

from mempo.rewards.answer_match import NORMALIZERS, split_answer

Objectives = Sequence[Sequence[str]]  # [objectives][aliases]
Pair = tuple[str, Sequence[str]]  # a part of the answer, and the aliases of its objective
Variant = Callable[[Sequence[Pair], Mapping[str, Any]], dict[str, float]]

_CHINESE = (("\u4e00", "\u9fff"), ("\u3400", "\u4dbf"), ("\uf900", "\ufaff"))
_NO_TOKEN = frozenset("0123456789，。 ,.-")
_TO_SPACES = str.maketrans(dict.fromkeys(string.punctuation, " "))
_BOOLEAN = {"True": "yes", "False": "no"}
_CLOSED = ("yes", "no", "noanswer")


@lru_cache(maxsize=65536)
def deleted(text: str) -> str:
    """Search-R1's normal form."""
    return NORMALIZERS["search-r1"](text)


@lru_cache(maxsize=65536)
def spaced(text: str) -> str:
    """MEM1's normal form: punctuation is replaced by spaces, articles stay."""
    return " ".join(text.lower().translate(_TO_SPACES).split())


@lru_cache(maxsize=65536)
def spaced_first(text: str) -> str:
    """ASearcher's normal form: as MEM1's, but lower case comes last. The two differ in Greek: a sigma before an
    apostrophe ends a word only once the apostrophe is gone."""
    return " ".join(text.translate(_TO_SPACES).split()).lower()


def set_f1(predicted: frozenset[str], gold: frozenset[str]) -> float:
    """F1 on sets of tokens; 0 when either is empty."""
    common = len(predicted & gold)
    return 2 * common / (len(predicted) + len(gold)) if common else 0.0


def search_r1(pairs: Sequence[Pair], meta: Mapping[str, Any]) -> dict[str, float]:
    return {"em": float(all(map(_equal, pairs))), "sub_em": float(all(map(_contained, pairs)))}


def hotpotqa(pairs: Sequence[Pair], meta: Mapping[str, Any]) -> dict[str, float]:
    return {"em": float(all(map(_equal, pairs))), "f1": _mean(_best(hotpotqa_f1, *pair) for pair in pairs)}


def flashrag(pairs: Sequence[Pair], meta: Mapping[str, Any]) -> dict[str, float]:
    return hotpotqa(pairs, meta) | {"acc": float(all(map(_contained, pairs)))}


def hotpotqa_f1(answer: str, gold: str) -> float:
    """Token F1 on multisets; an answer in one word of yes, no and noanswer fits that word alone."""
    said, wanted = deleted(answer), deleted(gold)
    if said != wanted and (said in _CLOSED or wanted in _CLOSED):
        return 0.0
    one, other = said.split(), wanted.split()
    common = (Counter(one) & Counter(other)).total()
    return 2 * common / (len(one) + len(other)) if common else 0.0


def mem1(pairs: Sequence[Pair], meta: Mapping[str, Any]) -> dict[str, float]:
    em = f1 = 0.0
    for piece, aliases in pairs:
        said, golds = spaced(piece), [spaced(alias) for alias in aliases]
        em += said in golds
        f1 += max((set_f1(_words(said), _words(gold)) for gold in golds), default=0.0)
    return {"em": em, "f1": f1}


def asearcher_train(pairs: Sequence[Pair], meta: Mapping[str, Any]) -> dict[str, float]:
    f1s = [_best(asearcher_f1, *pair) for pair in pairs]
    more = augmented(meta, len(pairs))
    best = [
        max(f1, _best(asearcher_f1, part, aliases)) for f1, (part, _), aliases in zip(f1s, pairs, more, strict=True)
    ]
    mapped = [(_mapped(part), [_mapped(alias) for alias in aliases]) for part, aliases in pairs]
    return {
        "em": _mean(map(_equal, mapped)),
        "cem": _mean(_best(_covers, *pair) for pair in pairs),
        "f1": _mean(f1s),
        "reward": 0.7 * _mean(f1s) + 0.3 * _mean(best),
    }


def asearcher_eval(pairs: Sequence[Pair], meta: Mapping[str, Any]) -> dict[str, float]:
    return {
        "em": _mean(map(_equal, pairs)),
        "cem": _mean(_best(_covers, *pair) for pair in pairs),
        "f1": _mean(_best(_words_f1, *pair) for pair in pairs),
    }


def asearcher_f1(answer: str, gold: str) -> float:
    """A gold answer in Chinese is taken character by character, and the answer with it."""
    said, wanted = spaced_first(_mapped(answer)), spaced_first(_mapped(gold))
    if any(low <= char <= high for char in wanted for low, high in _CHINESE):
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


VARIANTS: dict[str, tuple[Variant, tuple[str, ...]]] = {
    "search-r1": (search_r1, ("em", "sub_em")),
    "hotpotqa": (hotpotqa, ("em", "f1")),
    "flashrag": (flashrag, ("em", "acc", "f1")),
    "mem1": (mem1, ("em", "f1")),
    "asearcher-train": (asearcher_train, ("em", "cem", "f1", "reward")),
    "asearcher-eval": (asearcher_eval, ("em", "cem", "f1")),
    "asearcher": (asearcher_train, ("em", "cem", "f1", "reward")),
}
METRICS = {name: metrics for name, (_, metrics) in VARIANTS.items()}
SUMMED = frozenset(f"mem1/{metric}" for metric in METRICS["mem1"])
"""Metrics that are summed over the objectives, so that they lie between 0 and k."""


def variant_scores(
    name: str, answer: str | None, objectives: Objectives, meta: Mapping[str, Any] | None = None
) -> dict[str, float]:
    """Metrics of one published scorer; without an answer all are 0.

    Raises:
        KeyError: `name` is not one of `VARIANTS`.
    """
    score, metrics = VARIANTS[name]
    parts = [] if answer is None else _parts(name, answer.strip(), len(objectives))
    if not parts or len(parts) != len(objectives):
        return dict.fromkeys(metrics, 0.0)
    found = score(list(zip(parts, objectives, strict=True)), meta or {})
    return {metric: found[metric] for metric in metrics}


def _parts(name: str, answer: str, objectives: int) -> list[str]:
    if name == "mem1":
        return answer.lower().split(";")  # also with one objective, as published
    return [answer] if objectives == 1 else [piece.strip() for piece in split_answer(answer)]


def _mapped(text: str) -> str:
    return _BOOLEAN.get(text, text)


def _equal(pair: Pair) -> bool:
    return deleted(pair[0]) in [deleted(alias) for alias in pair[1]]


def _contained(pair: Pair) -> bool:
    said = deleted(pair[0])
    return any(deleted(alias) in said for alias in pair[1])


def _covers(answer: str, gold: str) -> float:
    """Every token of the gold is a token of the answer. Splitting on single spaces makes "" a token, as published."""
    said = deleted(_mapped(answer)).split(" ")
    return float(all(token in said for token in deleted(_mapped(gold)).split(" ")))


def _words_f1(answer: str, gold: str) -> float:
    return set_f1(_words(spaced_first(answer)), _words(spaced_first(gold)))


def _best(score: Callable[[str, str], float], part: str, aliases: Sequence[str]) -> float:
    return max((score(part, alias) for alias in aliases), default=0.0)


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


@lru_cache(maxsize=65536)
def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


@lru_cache(maxsize=65536)
def _characters(text: str) -> frozenset[str]:
    """Characters one by one, ASCII digits and some punctuation left out, and every run of digits of any script whole. A
    digit that is not ASCII is therefore there twice, as published."""
    runs = ("".join(chars) for digits, chars in groupby(text, str.isdigit) if digits)
    return frozenset({*text} - _NO_TOKEN) | frozenset(runs)
