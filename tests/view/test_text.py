"""Texts as they are shown: nothing invisible, gold whole words only, and a difference that loses nothing."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mempo.view.text import changes, marked, one_line, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Zürich 東京 ναι\n\tx", "Zürich 東京 ναι\n\tx"),
        ("a\u202eb", "a⟨U+202E⟩b"),
        ("zero\u200bwidth\ufeff", "zero⟨U+200B⟩width⟨U+FEFF⟩"),
        ("\x1b[31mred\x07", "⟨U+001B⟩[31mred⟨U+0007⟩"),
        ("a\u2028b\ud800", "a⟨U+2028⟩b⟨U+D800⟩"),
    ],
)
def test_what_hides_is_shown(text: str, shown: str) -> None:
    assert visible(text) == shown


@given(st.text(alphabet=st.characters()))
def test_nothing_invisible_is_left(text: str) -> None:
    left = {unicodedata.category(char) for char in visible(text)} - {"Cc"}
    assert left.isdisjoint({"Cf", "Cs", "Zl", "Zp"})
    assert all(char in "\n\t" for char in visible(text) if unicodedata.category(char) == "Cc")


def test_gold_is_marked_as_whole_words() -> None:
    text = "Paris, not Parisian; PARIS 7 and 79; 東京"
    found = [piece for kind, piece in marked(text, ["Paris", "7", "東京", " "]) if kind == "gold"]
    assert found == ["Paris", "PARIS", "7", "東京"]
    assert "".join(piece for _, piece in marked(text, ["Paris", "a.c"])) == text
    assert marked("abc", ["a.c"]) == [("", "abc")]


def test_the_difference_of_two_notes() -> None:
    pieces = changes("France: Paris; open: Japan", "France: Paris; Japan: Tokyo")
    assert [text for kind, text in pieces if kind == "ins"] == ["Japan", "Tokyo"]
    assert [text for kind, text in pieces if kind == "del"] == ["open", "Japan"]
    assert changes(None, "new") == [("", "new")]


@given(st.text("ab c.\n", max_size=40), st.text("ab c.\n", max_size=40))
def test_both_notes_can_be_read_from_their_difference(old: str, new: str) -> None:
    pieces = changes(old, new)
    assert "".join(text for kind, text in pieces if kind != "del") == new
    assert "".join(text for kind, text in pieces if kind != "ins") == old


def test_a_long_text_becomes_one_line() -> None:
    assert one_line("a\nb  c", 10) == "a b c"
    assert one_line("x" * 50, 10) == "x" * 9 + "…"
