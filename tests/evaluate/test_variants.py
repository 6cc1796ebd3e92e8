"""Published scorers against plain restatements of what their scripts do, written apart from the library."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mempo.evaluate.variants import MEASURES, augmented, variant_scores

PIECES = (
    *("Paris", "the", "A", "an", "U.S.", "New-York", "rome", "1,000", "...", "巴黎", "é", "3.14", "-5", "$5", "«x»"),
    *("İstanbul", "½", "ﬁn", "<mem>", "'the'", " ", "x\u00a0y", "\u200b", "a\tb", "\u2028"),
)
WORDS = st.lists(st.sampled_from(PIECES), max_size=5).map(" ".join)
ALIASES = st.lists(WORDS, min_size=1, max_size=3)


def squad(text: str) -> str:
    kept = "".join(c for c in text.lower() if c not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", kept).split())


def to_spaces(text: str) -> str:
    text = text.lower()
    for mark in string.punctuation:
        text = text.replace(mark, " ")
    return re.sub(r"\s+", " ", text).strip()


def set_f1(one: Sequence[str], other: Sequence[str]) -> float:
    said, gold = set(one), set(other)
    if not said or not gold or not said & gold:
        return 0.0
    precision, recall = len(said & gold) / len(said), len(said & gold) / len(gold)
    return 2 * precision * recall / (precision + recall)


@given(WORDS, ALIASES)
def test_search_r1(answer: str, aliases: list[str]) -> None:
    found = variant_scores("search-r1", answer, [aliases])
    assert found["em"] == any(squad(alias) == squad(answer) for alias in aliases)
    assert found["sub_em"] == any(squad(alias) in squad(answer) for alias in aliases)


@given(st.lists(WORDS, min_size=1, max_size=3), st.lists(ALIASES, min_size=1, max_size=3))
def test_mem1_sums_over_objectives_and_refuses_other_counts(answers: list[str], objectives: list[list[str]]) -> None:
    found = variant_scores("mem1", ";".join(answers), objectives)
    if len(answers) != len(objectives):
        assert found == {"em": 0.0, "f1": 0.0}
        return
    pairs = list(zip(answers, objectives, strict=True))
    assert found["em"] == sum(to_spaces(a) in [to_spaces(g) for g in golds] for a, golds in pairs)
    best = [max(set_f1(to_spaces(a).split(), to_spaces(g).split()) for g in golds) for a, golds in pairs]
    assert found["f1"] == pytest.approx(sum(best))


@given(WORDS.filter(lambda text: text.isascii()), ALIASES.filter(lambda texts: all(t.isascii() for t in texts)))
def test_asearcher_in_english(answer: str, aliases: list[str]) -> None:
    answer = answer.strip()
    found = variant_scores("asearcher", answer, [aliases])
    assert found["em"] == any(squad(alias) == squad(answer) for alias in aliases)
    covered = [all(t in squad(answer).split(" ") for t in squad(alias).split(" ")) for alias in aliases]
    assert found["cem"] == any(covered)
    f1 = max(set_f1(to_spaces(answer).split(), to_spaces(alias).split()) for alias in aliases)
    assert found["f1"] == pytest.approx(f1)
    assert found["reward"] == pytest.approx(f1)  # without augmented answers 0.7·F1 + 0.3·F1


def test_scores_by_hand() -> None:
    two = [["Paris"], ["New York City", "NYC"]]
    assert variant_scores("mem1", "paris; york new", two) == {"em": 1.0, "f1": pytest.approx(1 + 4 / 5)}
    assert variant_scores("mem1", "Paris; NYC", two) == {"em": 2.0, "f1": 2.0}  # more than 1: a sum
    assert variant_scores("mem1", "Paris", two) == {"em": 0.0, "f1": 0.0}
    assert variant_scores("search-r1", "Paris; NYC", two) == {"em": 1.0, "sub_em": 1.0}
    assert variant_scores("asearcher", "Paris; Rome", two)["em"] == 0.5
    # sets: a word said twice counts once
    assert variant_scores("mem1", "Paris Paris", [["Paris"]])["f1"] == 1.0


def test_chinese_is_taken_by_the_character() -> None:
    found = variant_scores("asearcher", "法国巴黎", [["巴黎"]])
    assert found["f1"] == pytest.approx(2 * 2 / (4 + 2))
    assert variant_scores("mem1", "法国巴黎", [["巴黎"]])["f1"] == 0.0  # one word to MEM1
    assert variant_scores("asearcher", "1949年", [["1949 年。"]])["f1"] == 1.0  # a number is one token


def test_augmented_answers_enter_the_reward() -> None:
    meta = {"aug_answer": ["city of light"]}
    found = variant_scores("asearcher", "City of Light", [["Paris"]], meta)
    assert found["f1"] == 0.0
    assert found["reward"] == pytest.approx(0.3)
    assert augmented({"aug_answer": [["a"], []]}, 2) == [["a"], []]
    assert augmented({"aug_answer": "a"}, 1) == [["a"]]
    assert augmented({"aug_answer": ["a", "b"]}, 2) == [[], []]  # of one objective, and there are two
    assert augmented({}, 2) == [[], []]


def test_published_scorers_keep_their_holes() -> None:
    assert variant_scores("search-r1", "The", [["A"]]) == {"em": 1.0, "sub_em": 1.0}
    assert variant_scores("search-r1", "Rome", [["A"]])["sub_em"] == 1.0
    assert variant_scores("mem1", "a", [["the"]])["em"] == 0.0  # articles stay


@pytest.mark.parametrize("name", MEASURES)
def test_no_answer_is_0(name: str) -> None:
    assert variant_scores(name, None, [["Paris"]]) == dict.fromkeys(MEASURES[name], 0.0)
