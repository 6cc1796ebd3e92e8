"""Words and facts of texts in several scripts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mempo.diagnose.words import facts_of, seen_in, squeezed, words_of
from mempo.rewards.answer_match import says_one_of


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("The capital of France is Paris.", ("france", "paris")),
        ("paris is the capital", ()),  # nothing looks like a name
        ("Founded 1,234 years ago, 12.5 % of H2O; iPhone", ("founded", "1234", "12.5", "h2o", "iphone")),
        ("Marie Curie's Port-au-Prince, O’Brien", ("marie", "curie", "port-au-prince", "o’brien")),
        ("Paris,Tokyo and Paris", ("paris", "tokyo")),
        ("Still need: Found nothing", ()),
        ("ＰＡＲＩＳ ﬁve", ("paris",)),
        ("Zürich Straße ΑΘΗΝΑ", ("zürich", "strasse", "αθηνα")),
        ("दिल्ली 12", ("दिल्ली", "12")),  # a script without capitals
        ("القاهرة is", ("القاهرة",)),
        ("กรุงเทพเป็นเมืองหลวง 7", ("7",)),  # no words known
        ("法国的首都是巴黎", ("法国", "首都", "巴黎")),
        ("フランスの首都はパリです", ("フランス", "首都", "パリ")),
        ("서울은 한국의 수도", ("서울", "한국", "수도")),
        ("", ()),
    ],
)
def test_facts(text: str, facts: tuple[str, ...]) -> None:
    assert facts_of(text) == facts


def test_marks_of_a_script_stay_in_their_word() -> None:
    assert [word.text for word in words_of("दिल्ली é")] == ["दिल्ली", "é"]


def test_what_the_question_says_is_no_fact() -> None:
    assert facts_of("capital of France: Paris", "Capital of france?") == ("paris",)
    assert facts_of("法国的首都是巴黎", "法国的首都是哪里") == ("巴黎",)


def test_seen_words_are_whole_words_and_cjk_text_is_found_anywhere() -> None:
    seen = seen_in(["Paris (France), est. 1,200", "巴黎是法国的首都"])
    assert seen.holds("paris")
    assert seen.holds("1200")
    assert seen.holds("巴黎")
    assert not seen.holds("par")
    assert not seen.holds("120")
    assert not seen.holds("东京")
    assert not seen_in([]).holds("paris")


def test_an_alias_is_found_as_an_answer_would_be() -> None:
    assert says_one_of("It is the NEW-YORK city", ["Boston", "new-york"])
    assert says_one_of("首都是東京。", ["東京"])
    assert not says_one_of("parisian", ["Paris"])
    assert not says_one_of("anything", ["", "  "])
    assert not says_one_of("", ["Paris"])


def test_same_text() -> None:
    assert squeezed(" Ａ  b\n c ") == squeezed("a B C")
    assert squeezed("a b") != squeezed("ab")


@given(st.text(alphabet="abZ12.,'-_ \n$", max_size=16))
def test_the_quick_way_for_ascii_sees_the_same_words(text: str) -> None:
    quick, slow = seen_in([text]).spaced[0], seen_in([f"{text} é"]).spaced[0]
    assert quick | {"é"} == slow


@given(st.text(max_size=40))
def test_any_text_is_read_and_holds_its_own_facts(text: str) -> None:
    seen = seen_in([text])
    assert all(seen.holds(fact) for fact in facts_of(text))
