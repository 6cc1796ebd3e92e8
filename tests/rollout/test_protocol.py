"""The language of a turn: what counts as an action and a note, and the eight format rules."""

from __future__ import annotations

import pytest

from mempo.rollout.protocol import (
    FORMAT_RULES,
    TURN_RULES,
    NoteStatus,
    ParsedTurn,
    ParseOutcome,
    TurnGrammar,
    format_violations,
    parse_turn,
    scan,
)

GRAMMAR = TurnGrammar()
GOOD = "<mem>Paris is the capital</mem><think>next</think><search>capital of Japan</search>"
ANSWER = "<mem>all known</mem><think>done</think><answer>Paris; Tokyo</answer>"


def later(text: str, grammar: TurnGrammar = GRAMMAR, truncated: bool = False) -> ParsedTurn:
    """The text as the second turn, where a note is due."""
    return parse_turn(text, 1, grammar, truncated)


# Every text breaks exactly the rule it stands under: when that rule is removed, no other one sees it.
BREAKS = [
    ("balanced", "<mem>n</mem><think>t</think><search>q</search></think>"),
    ("balanced", "</mem><mem>n</mem><think>t</think><search>q</search>"),
    ("balanced", "<mem>n</mem><think>t</think><search>never closed"),
    ("nesting", "<mem>n <think>inside</think></mem><think>t</think><search>q</search>"),
    ("nesting", "<mem>n</mem><think>t <search>q</search></think><search>q</search>"),
    ("order", "<think>t</think><mem>n</mem><search>q</search>"),
    ("order", "<mem>n</mem><search>q</search><think>t</think>"),
    ("order", "<think>t</think><search>q</search><mem>n</mem>"),
    ("memory_present", "<think>t</think><search>q</search>"),
    ("memory_present", "<mem>n</mem><mem>again</mem><think>t</think><search>q</search>"),
    ("one_think", "<mem>n</mem><search>q</search>"),
    ("one_think", "<mem>n</mem><think>t</think><think>u</think><search>q</search>"),
    ("one_action", "<mem>n</mem><think>t</think>"),
    ("one_action", "<mem>n</mem><think>t</think><search>a</search><answer>b</answer>"),
    ("one_action", "<mem>n</mem><think>t</think><answer>b</answer><search>a</search>"),
    ("clean", "<mem>n</mem>so:<think>t</think><search>q</search>"),
    ("clean", "<mem>n</mem><think>t</think><search>q</search> and so on"),
    ("clean", "<mem>n</mem><think> \n </think><search>q</search>"),
    ("clean", "<mem></mem><think>t</think><search>q</search>"),
    ("clean", "<mem>n</mem><think>t</think><search> </search>"),
    ("clean", "<mem>n</mem><think>t</think><search>q</search><tool_response>Paris</tool_response>"),
]


def test_good_turns_break_no_rule() -> None:
    assert not later(GOOD).violations
    assert not later(ANSWER).violations
    assert not later(GOOD.replace("><", ">\n\n <")).violations, "white space between tags is free"
    assert not parse_turn("<think>t</think><access>u</access>", 0, GRAMMAR).violations, "no note is due at turn 1"


@pytest.mark.parametrize(("rule", "text"), BREAKS)
def test_each_rule_is_broken_alone(rule: str, text: str) -> None:
    assert later(text).violations == {rule}


def test_every_turn_rule_has_an_input_that_breaks_it() -> None:
    assert {rule for rule, _ in BREAKS} == set(TURN_RULES)
    assert len(FORMAT_RULES) == 8


def test_final_answer_wants_the_last_turn_to_answer_and_no_earlier_one() -> None:
    search, answer = later(GOOD), later(ANSWER)
    assert format_violations([search, answer]) == {}
    assert format_violations([search, search]) == {"final_answer": 1}
    assert format_violations([answer, answer]) == {"final_answer": 1}
    assert format_violations([]) == {"final_answer": 1}


def test_violations_count_turns() -> None:
    noisy = later("x" + GOOD)
    assert format_violations([noisy, noisy, later(ANSWER)]) == {"clean": 2}


def test_pieces_of_a_tag_around_another_are_stray_text() -> None:
    # Joined they would read `</mem>`, and closing tags that close nothing are not stray.
    text = "</me<mem>n</mem>m><think>t</think><search>q</search>"
    assert later(text).violations == {"clean"}


# --- actions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        (GOOD, ParseOutcome.OK),
        ("", ParseOutcome.NO_ACTION),
        ("Paris, I think.", ParseOutcome.NO_ACTION),
        ("<search>a</search><answer>b</answer>", ParseOutcome.TWO_ACTIONS),
        ("<answer>b</answer><search>a</search>", ParseOutcome.TWO_ACTIONS),
        ("<search>a</search><search>a</search>", ParseOutcome.TWO_ACTIONS),
        ("<access></access>", ParseOutcome.EMPTY_ACTION),
        ("<search>\n</search>", ParseOutcome.EMPTY_ACTION),
        ("<access>", ParseOutcome.UNCLOSED_TAG),
        ("<search>x</search", ParseOutcome.UNCLOSED_TAG),
        ("<SEARCH>x</SEARCH>", ParseOutcome.NO_ACTION),
        ("<search >x</search>", ParseOutcome.NO_ACTION),
        ("<Search>x</search>", ParseOutcome.NO_ACTION),
    ],
)
def test_what_became_of_the_action(text: str, outcome: ParseOutcome) -> None:
    parsed = later(text)
    assert parsed.outcome is outcome
    assert (parsed.action is not None) == (outcome is ParseOutcome.OK)


@pytest.mark.parametrize("text", ["<access>", "<search>x</search", "<think>so it is", "so it is"])
def test_a_cut_turn_without_action_is_truncated(text: str) -> None:
    assert later(text, truncated=True).outcome is ParseOutcome.TRUNCATED


def test_a_turn_that_closed_its_action_in_time_is_not_truncated() -> None:
    assert later(GOOD, truncated=True).outcome is ParseOutcome.OK


def test_an_action_the_grammar_lacks_is_named_so() -> None:
    parsed = later("<mem>n</mem><think>t</think><access>u</access>", TurnGrammar(actions=("search", "answer")))
    assert parsed.outcome is ParseOutcome.ACTION_NOT_ALLOWED
    assert parsed.violations == {"one_action"}


@pytest.mark.parametrize(
    "text",
    [
        "<think>maybe <answer>Paris</answer></think>",
        "<mem><answer>Paris</answer></mem>",
        "<tool_response><answer>Paris</answer></tool_response>",
        "<think>never closed <answer>Paris</answer>",
        "<mem>never closed <answer>Paris</answer>",
    ],
)
def test_an_action_inside_another_tag_is_text(text: str) -> None:
    assert later(text).action is None


def test_an_action_in_a_thought_does_not_count_beside_a_real_one() -> None:
    parsed = later("<mem>n</mem><think>or <search>Lyon</search>?</think><answer>Paris</answer>")
    assert parsed.outcome is ParseOutcome.OK
    assert parsed.action is not None
    assert (parsed.action.kind, parsed.action.text) == ("answer", "Paris")


def test_outer_white_space_of_an_action_is_stripped_and_inner_kept() -> None:
    action = later("<search>\n capital  of\tJapan \n</search>").action
    assert action is not None
    assert action.text == "capital  of\tJapan"


# --- text that was written for the policy --------------------------------------------------------------------------


def test_the_same_reply_without_the_opening_still_answers_but_breaks_the_format() -> None:
    parsed = parse_turn("r</think><answer>Paris</answer>", 0, GRAMMAR)
    assert parsed.action is not None
    assert parsed.action.text == "Paris"
    assert parsed.violations == {"balanced", "clean", "one_think"}


def test_a_reply_that_opens_the_forced_note_again_is_nested_and_unclosed() -> None:
    assert later("<mem><mem>n</mem><think>t</think><search>q</search>").violations >= {"balanced", "nesting"}


# --- notes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "truncated", "status"),
    [
        (GOOD, False, NoteStatus.OK),
        ("<think>t</think><search>q</search>", False, NoteStatus.MISSING),
        ("<mem></mem><think>t</think><search>q</search>", False, NoteStatus.EMPTY),
        ("<mem> \n</mem><think>t</think><search>q</search>", False, NoteStatus.EMPTY),
        ("<mem>never closed<think>t</think><search>q</search>", False, NoteStatus.UNCLOSED),
        ("<mem>cut in the mid", True, NoteStatus.TRUNCATED),
        ("<think><mem>a note in a thought</mem></think><search>q</search>", False, NoteStatus.MISSING),
    ],
)
def test_what_became_of_the_note(text: str, truncated: bool, status: NoteStatus) -> None:
    parsed = later(text, truncated=truncated)
    assert parsed.note_status is status
    assert (parsed.note is not None) == (status is NoteStatus.OK)


def test_the_span_of_a_note_holds_both_tags() -> None:
    text = "  " + GOOD
    note = later(text).note
    assert note is not None
    assert text[note.start : note.end] == "<mem>Paris is the capital</mem>"
    assert note.inner(text) == "Paris is the capital"


@pytest.mark.parametrize(
    ("grammar", "index", "with_note", "without_note"),
    [
        (TurnGrammar(), 0, True, True),
        (TurnGrammar(), 1, True, False),
        (TurnGrammar(first_note="required"), 0, True, False),
        (TurnGrammar(first_note="forbidden"), 0, False, True),
        (TurnGrammar(first_note="forbidden"), 1, True, False),
        (TurnGrammar(notes="optional"), 3, True, True),
        (TurnGrammar(notes="forbidden"), 0, False, True),
        (TurnGrammar(notes="forbidden"), 3, False, True),
    ],
)
def test_whether_a_note_is_due(grammar: TurnGrammar, index: int, with_note: bool, without_note: bool) -> None:
    assert ("memory_present" not in parse_turn(GOOD, index, grammar).violations) == with_note
    bare = "<think>t</think><search>q</search>"
    assert ("memory_present" not in parse_turn(bare, index, grammar).violations) == without_note


def test_an_agent_without_notes_keeps_the_whole_format() -> None:
    react = TurnGrammar(notes="forbidden")
    turns = [parse_turn("<think>t</think><search>q</search>", i, react) for i in range(2)]
    turns.append(parse_turn("<think>t</think><answer>a</answer>", 2, react))
    assert format_violations(turns) == {}


def test_a_refused_note_breaks_a_rule_only_where_one_is_due() -> None:
    refused = later(GOOD).without_note("required")
    assert refused.note is None
    assert refused.note_status is NoteStatus.TRUNCATED
    assert refused.violations == {"memory_present"}
    assert not parse_turn(GOOD, 0, GRAMMAR).without_note("optional").violations


# --- parsing is total ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<",
        "<<mem>>",
        "<mem",
        "</",
        "\0",
        "\ud800",
        "<mem>\ud800</mem>",
        "<think>" * 500,
        "</think>" * 500,
        "<m>" * 9,
    ],
)
def test_any_text_parses(text: str) -> None:
    for truncated in (False, True):
        parsed = later(text, truncated=truncated)
        assert parsed.action is None
        assert isinstance(parsed.outcome, ParseOutcome)


def test_a_deep_nest_of_open_tags_parses() -> None:
    found = scan("<mem>" * 20_000)
    assert len(found.elements) == 20_000
    assert found.elements[-1].depth == 19_999


def test_what_a_closing_tag_jumps_over_stays_unclosed() -> None:
    found = scan("<think>a<mem>b</think>")
    assert [(e.tag, e.closed) for e in found.elements] == [("think", True), ("mem", False)]
