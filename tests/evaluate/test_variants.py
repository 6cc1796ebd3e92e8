"""Published scorers against plain restatements of what their scripts do, written apart from the library."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mempo.evaluate.published_scores import METRICS, augmented, variant_scores

PIECES = (
    *("Paris", "the", "A", "an", "U.S.", "New-York", "rome", "1,000", "...", "巴黎", "é", "3.14", "-5", "$5", "«x»"),
    *("True", "False", "yes", "no", "noanswer", "㐀", "\uf900", "１９９７年", "1997年", "第²", "、"),
    *("ΟΔΟΣ'Α", "ΣΟΦΟΣ.", "İstanbul", "½", "ﬁn", "<mem>", "'the'", " ", "x\u00a0y", "\u200b", "a\tb", "\u2028"),
)
WORDS = st.lists(st.sampled_from(PIECES), max_size=5).map(" ".join)
ALIASES = st.lists(WORDS, min_size=1, max_size=3)


def squad(text: str) -> str:
    kept = "".join(c for c in text.lower() if c not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", kept).split())


def to_spaces(text: str) -> str:
    """MEM1 lowers the case first."""
    text = text.lower()
    for mark in string.punctuation:
        text = text.replace(mark, " ")
    return re.sub(r"\s+", " ", text).strip()


def to_spaces_first(text: str) -> str:
    """ASearcher lowers the case last."""
    for mark in string.punctuation:
        text = text.replace(mark, " ")
    return re.sub(r"\s+", " ", text).strip().lower()


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


def yes_no(text: str) -> str:
    return {"True": "yes", "False": "no"}.get(text, text)


def characters(text: str) -> list[str]:
    """What ASearcher's rewards make of Chinese: characters but for ASCII digits and a few marks, and runs of digits."""
    found, run = [char for char in text if char not in "0123456789，。 ,.-"], ""
    for char in text + "\0":
        if char.isdigit():
            run += char
        elif run:
            found.append(run)
            run = ""
    return found


def rewards_f1(answer: str, gold: str) -> float:
    answer, gold = to_spaces_first(yes_no(answer)), to_spaces_first(yes_no(gold))
    if any(0x4E00 <= ord(c) <= 0x9FFF or 0x3400 <= ord(c) <= 0x4DBF or 0xF900 <= ord(c) <= 0xFAFF for c in gold):
        return set_f1(characters(answer), characters(gold))
    return set_f1(answer.split(), gold.split())


def covers(answer: str, gold: str) -> bool:
    said = squad(yes_no(answer)).split(" ")
    return all(token in said for token in squad(yes_no(gold)).split(" "))


@given(WORDS, ALIASES)
def test_asearchers_rewards(answer: str, aliases: list[str]) -> None:
    answer = answer.strip()
    found = variant_scores("asearcher-train", answer, [aliases])
    assert found == variant_scores("asearcher", answer, [aliases])
    f1 = max(rewards_f1(answer, alias) for alias in aliases)
    assert found["em"] == any(squad(yes_no(alias)) == squad(yes_no(answer)) for alias in aliases)
    assert found["cem"] == any(covers(answer, alias) for alias in aliases)
    assert found["f1"] == pytest.approx(f1)
    assert found["reward"] == pytest.approx(f1)  # without augmented answers 0.7·F1 + 0.3·F1


@given(WORDS, ALIASES)
def test_asearchers_evaluation(answer: str, aliases: list[str]) -> None:
    answer = answer.strip()
    found = variant_scores("asearcher-eval", answer, [aliases])
    assert found["em"] == any(squad(alias) == squad(answer) for alias in aliases)
    assert found["cem"] == any(covers(answer, alias) for alias in aliases)
    f1 = max(set_f1(to_spaces_first(answer).split(), to_spaces_first(alias).split()) for alias in aliases)
    assert found["f1"] == pytest.approx(f1)


def closed_f1(answer: str, gold: str) -> float:
    answer, gold = squad(answer), squad(gold)
    if answer != gold and {answer, gold} & {"yes", "no", "noanswer"}:
        return 0.0
    said, wanted = answer.split(), gold.split()
    common = sum(min(said.count(word), wanted.count(word)) for word in set(said))
    if not common:
        return 0.0
    precision, recall = common / len(said), common / len(wanted)
    return 2 * precision * recall / (precision + recall)


@given(WORDS, ALIASES)
def test_hotpotqa_and_flashrag(answer: str, aliases: list[str]) -> None:
    answer = answer.strip()
    hotpot, flash = variant_scores("hotpotqa", answer, [aliases]), variant_scores("flashrag", answer, [aliases])
    assert hotpot["em"] == any(squad(alias) == squad(answer) for alias in aliases)
    assert hotpot["f1"] == pytest.approx(max(closed_f1(answer, alias) for alias in aliases))
    assert flash == {**hotpot, "acc": float(any(squad(alias) in squad(answer) for alias in aliases))}


@pytest.mark.parametrize(
    ("name", "answer", "gold", "em", "f1"),
    [
        # asearcher-train is ASearcher/utils/rewards.py, asearcher-eval is evaluation/evaluate.py of the same project
        ("asearcher-train", "True", "yes", 1.0, 1.0),
        ("asearcher-eval", "True", "yes", 0.0, 0.0),
        ("asearcher-train", "no", "False", 1.0, 1.0),
        ("asearcher-eval", "no", "False", 0.0, 0.0),
        ("asearcher-train", "true", "yes", 0.0, 0.0),  # only the capital form is mapped
        ("asearcher-train", "True.", "yes", 0.0, 0.0),  # and only the bare word
        ("asearcher-train", "㐀国", "国㐀", 0.0, 1.0),  # U+3400
        ("asearcher-train", "\uf900国", "国 \uf900", 0.0, 1.0),
        ("asearcher-eval", "㐀国", "国㐀", 0.0, 0.0),
        ("asearcher-eval", "\uf900国", "国 \uf900", 0.0, 0.0),
        ("asearcher-train", "巴黎 x", "x", 0.0, 2 / 3),  # the gold alone decides whether it is Chinese
        ("asearcher-train", "\U00020000国", "国\U00020000", 0.0, 1.0),  # 国 makes it Chinese
        ("asearcher-train", "\U00020000\U00020001", "\U00020001\U00020000", 0.0, 0.0),  # extension B alone does not
        ("asearcher-train", "１９９７年", "1997年", 0.0, 2 / 7),  # １, ９, ７, 年 and １９９７ against 年 and 1997
        ("asearcher-eval", "１９９７年", "1997年", 0.0, 0.0),
        ("asearcher-train", "３国", "３国", 1.0, 1.0),
        ("asearcher-train", "国3", "3 国。", 0.0, 1.0),  # 3 is a number, 。 no token
        ("asearcher-train", "北京；上海", "北京;上海", 0.0, 8 / 9),  # 5 characters against 4
        # In ΟΔΟΣ'Α the sigma stands inside of a word until the apostrophe is a space: what comes first matters.
        ("asearcher-train", "ΟΔΟΣ'Α", "οδος α", 0.0, 1.0),
        ("asearcher-eval", "ΟΔΟΣ'Α", "οδος α", 0.0, 1.0),
        ("mem1", "ΟΔΟΣ'Α", "οδος α", 0.0, 0.5),
        ("mem1", "ΟΔΟΣ'Α", "οδοσ α", 1.0, 1.0),
        # hotpotqa is hotpot_evaluate_v1.py, flashrag is flashrag/evaluator/metrics.py
        ("hotpotqa", "yes it is", "yes", 0.0, 0.0),
        ("hotpotqa", "Yes.", "yes", 1.0, 1.0),
        ("hotpotqa", "no", "no war", 0.0, 0.0),
        ("hotpotqa", "the no", "a no", 1.0, 1.0),  # compared after normalisation
        ("flashrag", "noanswer given", "noanswer", 0.0, 0.0),
        ("flashrag", "no answer", "noanswer", 0.0, 0.0),
        ("flashrag", "no-answer", "noanswer", 1.0, 1.0),
        ("hotpotqa", "True", "yes", 0.0, 0.0),  # nothing is mapped here
        ("hotpotqa", "The", "A", 1.0, 0.0),  # both are nothing: equal, and without a token in common
        ("flashrag", "", "the", 1.0, 0.0),
        ("hotpotqa", "3,000", "3000", 1.0, 1.0),
        ("asearcher-eval", "3,000", "3000", 1.0, 0.0),  # F1 makes 3 and 000 of it
        ("hotpotqa", "Paris Paris", "Paris", 0.0, 2 / 3),  # multisets
        ("asearcher-eval", "Paris Paris", "Paris", 0.0, 1.0),  # sets
    ],
)
def test_where_the_published_scorers_differ(name: str, answer: str, gold: str, em: float, f1: float) -> None:
    """Each row was scored by the published module too."""
    found = variant_scores(name, answer, [[gold]])
    assert (found["em"], found["f1"]) == (em, pytest.approx(f1))


def test_several_objectives_of_scripts_that_know_one() -> None:
    two = [["巴黎"], ["东京"]]
    for name in ("search-r1", "hotpotqa", "flashrag", "asearcher-train", "asearcher-eval"):
        assert variant_scores(name, "巴黎；东京", two)["em"] == 1.0
        assert variant_scores(name, "巴黎", two) == dict.fromkeys(METRICS[name], 0.0)
    assert variant_scores("flashrag", "Paris; Rome", [["Paris"], ["Lima"]]) == {"em": 0.0, "acc": 0.0, "f1": 0.5}
    assert variant_scores("mem1", "巴黎；东京", two)["em"] == 0.0  # as published


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


@pytest.mark.parametrize("name", METRICS)
def test_no_answer_is_0(name: str) -> None:
    assert variant_scores(name, None, [["Paris"]]) == dict.fromkeys(METRICS[name], 0.0)
