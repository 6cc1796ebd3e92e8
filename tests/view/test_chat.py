"""`mempo chat`: turns appear as they are, and nothing in them reaches the terminal as a command."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from mempo.config.rollout import DecodingSettings
from mempo.view.chat import answer_all
from tests.tiny import Scripted, make_agent
from tests.view.build import PASSAGES, TEXTS, TOKENIZER, Finds


def said(
    texts: tuple[str, ...], questions: list[str], show_context: bool = False, passages: tuple[str, ...] = PASSAGES
) -> str:
    out = StringIO()
    agent = make_agent(TOKENIZER, tools={"search": Finds(passages)}, max_turn_tokens=500, max_context_tokens=2000)
    asked = iter([*questions, ""])
    console = Console(file=out, width=300, force_terminal=False)
    answer_all(agent, Scripted(TOKENIZER, texts), DecodingSettings(), 0, console, show_context, lambda: next(asked))
    return out.getvalue()


def test_turns_appear_with_what_the_agent_carries() -> None:
    lines = said(TEXTS, ["capital of France; capital of Japan"]).splitlines()
    assert lines[0].startswith("turn 1: sees ")
    assert lines[0].endswith(" tokens of question and carries 0")
    assert lines[1:3] == ["  thinks  look", "  search  capital of France"]
    assert "          Paris is the capital of France, not Parisian." in lines
    assert "    note  France: Paris; Japan: Tokyo" in lines
    assert "  answer  Paris; Tokyo" in lines
    assert lines[-1].startswith("answered: 3 turns, at most ")


def test_the_whole_context_on_request() -> None:
    assert "<mem>France: Paris</mem><search>capital of Japan</search>" in said(TEXTS, ["q"], show_context=True)


def test_one_question_after_the_other() -> None:
    answers = tuple(f"<think>x</think><answer>{n}</answer>" for n in range(3))
    text = said(answers, ["a", "b", "c"])
    assert [text.count(f"answer  {n}") for n in range(3)] == [1, 1, 1]


def test_a_turn_without_an_action_says_what_it_was() -> None:
    text = said(("<think>hm", "<answer>x</answer>"), ["q"])
    assert "unclosed_tag  <think>hm" in text


@pytest.mark.parametrize("bait", ["\x1b[2J\x1b]0;owned\x07", "[bold]markup[/bold][/nothing]", "\u202egnol"])
def test_nothing_is_obeyed_by_the_terminal(bait: str) -> None:
    texts = (
        f"<mem>{bait}</mem><think>{bait}</think><search>{bait}</search>",
        f"<think>{bait}</think><answer>{bait}</answer>",
    )
    text = said(texts, ["q"], passages=(bait,), show_context=True)
    assert not set(text) & set("\x1b\x07\u202e")
    if bait.startswith("["):
        assert text.count(bait) >= 6
