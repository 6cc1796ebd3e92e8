"""Parsing takes time in proportion to the text, whatever it holds, and gives what a plain quadratic parser gives."""

from __future__ import annotations

import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mempo.rollout.agent import read_turn
from mempo.rollout.protocol import TURN_RULES, Element, NoteStatus, Scan, TurnGrammar, clean, parse_turn, scan
from mempo.rollout.protocol import _tag_pattern as tag_pattern
from tests.tiny import make_agent, make_tokenizer, said

OWN = TurnGrammar(actions=("search", "guess", "answer"))
PIECES = [
    f"<{slash}{tag}>" for tag in ("mem", "think", "search", "answer", "guess", "tool_response") for slash in ("", "/")
]
TEXTS = st.lists(
    st.sampled_from([*PIECES, "a", " ", "\n", "\u2003", "\x1f", "<", "</", ">", "mem>", "<mem", "\ufffd", "＜mem＞"]),
    max_size=30,
).map("".join)


def naive_scan(text: str, actions: tuple[str, ...]) -> Scan:
    """A stack that is searched whole for every closing tag."""
    elements: list[Element] = []
    stack: list[tuple[str, int, int]] = []
    orphans = 0
    for match in tag_pattern(actions).finditer(text):
        is_closing, tag = match.group(1) == "/", match.group(2)
        if not is_closing:
            stack.append((tag, match.start(), match.end()))
            continue
        depth = next((i for i in range(len(stack) - 1, -1, -1) if stack[i][0] == tag), None)
        if depth is None:
            orphans += 1
            continue
        for i in range(len(stack) - 1, depth, -1):
            name, start, inner = stack.pop()
            elements.append(Element(name, start, inner, match.start(), match.start(), False, i))
        name, start, inner = stack.pop()
        elements.append(Element(name, start, inner, match.start(), match.end(), True, depth))
    for i in range(len(stack) - 1, -1, -1):
        name, start, inner = stack[i]
        elements.append(Element(name, start, inner, len(text), len(text), False, i))
    return Scan(text, tuple(sorted(elements, key=lambda e: e.start)), orphans)


def naive_clean(s: Scan, grammar: TurnGrammar) -> bool:
    outside, position = "", 0
    for e in s.elements:
        if e.depth == 0:
            outside += s.text[position : e.start] + "\0"  # a letter that belongs to no tag keeps the pieces apart
            position = e.end
    outside += s.text[position:]
    stray = tag_pattern(grammar.actions).sub("", outside).replace("\0", "").strip()
    empty = any(e.closed and not e.inner(s.text).strip() for e in s.elements)
    return not stray and not empty and all(e.tag != "tool_response" for e in s.elements)


@settings(max_examples=1500, deadline=None)
@given(TEXTS, st.booleans())
def test_the_parser_gives_what_a_quadratic_one_gives(text: str, truncated: bool) -> None:
    for grammar in (TurnGrammar(), OWN):
        found = naive_scan(text, grammar.actions)
        assert scan(text, grammar.actions) == found
        assert clean(found, 1, grammar) == naive_clean(found, grammar)
        parsed = parse_turn(text, 1, grammar, truncated)
        assert parsed.violations == {name for name, rule in TURN_RULES.items() if not rule(found, 1, grammar)}
        notes = [e for e in found.top if e.tag == "mem" and text[e.inner_start : e.inner_end].strip()]
        assert parsed.note == (notes[0] if notes else None)
        assert (parsed.note_status is NoteStatus.OK) == bool(notes)


def test_white_space_is_what_it_was_for_every_letter() -> None:
    different = [
        code
        for code in range(sys.maxunicode + 1)
        if Element("mem", 0, 0, 1, 1, True, 0).is_blank(chr(code)) != (not chr(code).strip())
    ]
    assert different == []


N = 16_000
SHAPES = {
    "openings, then other closings": "<think>" * N + "</search>" * N,
    "nested pairs": "<think>" * N + "</think>" * N,
    "openings and other closings in turn": "<think></search>" * N,
    "two kinds of openings, one closed": "<mem>" * N + "<think>" * N + "</mem>" * N,
    "nested pairs with room inside": ("<mem>" + " " * 9) * N + "</mem>" * N,
    "openings that never close": "<search>" * N,
    "closings alone": "</answer>" * N,
    "pairs side by side": "<mem> x</mem>" * N,
    "blank pairs side by side": "<mem> </mem>" * N,
    "brackets": "<" * 256_000,
    "a blank note": "<mem>" + " " * 256_000,
    "stray text": "x </mem>" * N,
}


@pytest.mark.parametrize("text", SHAPES.values(), ids=SHAPES.keys())
def test_a_quarter_of_a_megabyte_is_parsed_at_once(text: str) -> None:
    began = time.process_time()
    parse_turn(text, 1, TurnGrammar())
    assert time.process_time() - began < 2.0  # 0.07 s at most; a quadratic parser takes 8 s and more


@pytest.mark.parametrize("family", ["byte_bpe", "byte_fallback"])
def test_a_turn_of_broken_and_shared_letters_is_read_at_once(family: str) -> None:
    tokenizer = make_tokenizer(family)
    text = "<mem>" + "東京é" * 8_000 + "</mem><search>\ufffd</search>"
    began = time.process_time()
    turn = read_turn(make_agent(tokenizer), 1, (1,), (), said(tokenizer, text, 10**6), 1.0)
    assert time.process_time() - began < 5.0  # 0.3 s; by growing prefixes minutes
    assert turn.note_ids is not None
    assert len(turn.note_ids) > 8_000
