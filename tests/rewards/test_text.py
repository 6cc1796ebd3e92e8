from __future__ import annotations

import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mempo.rewards.answer_match import answer_tokens, exact_match, f1, normalize, sub_em


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Eiffel-Tower!", "eiffeltower"),
        ("U.S. $1,000", "us 1000"),
        ("Ｐａｒｉｓ", "paris"),  # full width
        ("«Straße»", "strasse"),
        ("Paris\u200b", "paris"),  # zero-width space
        ("“The Who”…", "who"),
        ("San\u00a0José\n", "san josé"),
        ("Jose\u0301", "josé"),
        ("A", "a"),
        ("The The", "the the"),
        ("an apple a day", "apple day"),
        ("Theatre", "theatre"),
        ("...", ""),
        ("", ""),
    ],
)
def test_default_normalization(text: str, expected: str) -> None:
    assert normalize(text) == expected


def published(text: str) -> str:
    """The published steps, written apart from the library."""
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


@given(st.text(st.sampled_from(string.ascii_letters + string.digits + string.punctuation + " \t\n"), max_size=40))
def test_default_equals_the_published_form_on_english_unless_only_articles_are_left(text: str) -> None:
    assert normalize(text, "search-r1") == published(text)
    if published(text):
        assert normalize(text) == published(text)


@pytest.mark.parametrize("words", ["The cat", "an A the x", "the the", "theatre a", "A."])
def test_published_form_on_articles(words: str) -> None:
    assert normalize(words, "search-r1") == published(words)


def test_published_form_loses_what_ours_keeps() -> None:
    assert normalize("A", "search-r1") == "" != normalize("A")
    assert normalize("“x”", "search-r1") == "“x”" != normalize("“x”")


@given(st.text(max_size=30), st.sampled_from(["default", "search-r1"]))
def test_normalization_never_fails_and_leaves_no_outer_space(text: str, variant: str) -> None:
    normal = normalize(text, variant)
    assert normal == " ".join(normal.split())


def test_unknown_variant_is_refused() -> None:
    with pytest.raises(KeyError):
        normalize("x", "nope")


def test_tokens_take_cjk_by_the_character() -> None:
    assert answer_tokens("東京タワー is in Tokyo") == ["東", "京", "タ", "ワ", "ー", "is", "in", "tokyo"]
    assert answer_tokens("東京 x", "search-r1") == ["東京", "x"]


@pytest.mark.parametrize(
    ("prediction", "gold", "matches"),
    [
        ("B", "A", False),
        ("A", "A", True),
        ("A.", "A", True),
        ("A", "A.", True),
        ("Who", "The Who", True),
        ("...", "The Who", False),
        ("...", "A", False),
        ("...", "!!!", False),
        ("", "", False),
        ("The The", "the the", True),
        ("The", "A", False),
        ("Paris", "PARIS ", True),
    ],
)
def test_exact_match_and_the_gold_named_a(prediction: str, gold: str, matches: bool) -> None:
    assert exact_match(prediction, [gold]) is matches


def test_empty_never_matches_in_the_published_form_either() -> None:
    assert not exact_match("A", ["The"], "search-r1")
    assert not sub_em("anything", ["A"], "search-r1")
    assert f1("A", ["The"], "search-r1") == 0.0


def test_any_alias_will_do_and_a_bare_string_is_one_alias() -> None:
    assert exact_match("NYC", ["New York", "NYC"])
    assert exact_match("Paris", "Paris")
    assert not exact_match("P", "Paris")
    assert not sub_em("a P b", "Paris")
    assert f1("P", "Paris") == 0.0


def test_em_and_sub_em_differ_on_a_sentence() -> None:
    assert not exact_match("It is in Paris, France", ["Paris"])
    assert sub_em("It is in Paris, France", ["Paris"])
    assert not sub_em("Paris", ["Paris, France"])


def test_sub_em_looks_for_whole_tokens_except_in_the_published_form() -> None:
    assert not sub_em("banana", ["a"])
    assert not sub_em("born in 1914", ["1"])
    assert sub_em("born in 1914", ["1"], "search-r1")
    assert sub_em("the 東京 tower", ["京"])
    assert not sub_em("anything", ["..."])


def test_f1_counts_tokens_with_their_number() -> None:
    assert f1("Paris France", ["Paris"]) == pytest.approx(2 / 3)
    # 1 of 3 predicted and 1 of 1 gold in common: sets would give 2/2.
    assert f1("ha ha ha", ["ha"]) == pytest.approx(0.5)
    assert f1("ha ha", ["ha ha ha"]) == pytest.approx(0.8)
    assert f1("x y", ["z", "x y z"]) == pytest.approx(0.8)
    assert f1("東京", ["東京都"]) == pytest.approx(0.8)
    assert f1("...", ["..."]) == 0.0


@given(st.text(max_size=20), st.lists(st.text(max_size=20), max_size=3))
def test_metrics_are_consistent(prediction: str, aliases: list[str]) -> None:
    score = f1(prediction, aliases)
    assert 0.0 <= score <= 1.0
    if exact_match(prediction, aliases):
        assert score == 1.0
        assert sub_em(prediction, aliases)
