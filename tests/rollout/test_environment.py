"""Environments to act in: action tags of their own in the language of a turn, tools with a state for every rollout."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from mempo.config import resolve
from mempo.envs.atlas import AtlasEnvironment
from mempo.errors import ConfigError, UserError
from mempo.rollout.agent import Agent, Job, run_rollouts
from mempo.rollout.interfaces import Environment, InteractiveEnvironment, Tool, ToolErrorKind, ToolResult
from mempo.rollout.protocol import ACTION_TAGS, TAGS, ParseOutcome, TurnGrammar, format_violations, parse_turn, scan
from mempo.rollout.question import Question
from mempo.rollout.trajectory import StopReason, Trajectory
from mempo.setup import make_agent as agent_of
from tests.tiny import Scripted, make_agent, make_tokenizer

TOKENIZER = make_tokenizer("byte_bpe", "added")
WITH_MOVE = TurnGrammar(actions=("move", "answer"))
MOVED = "<mem>n</mem><think>t</think><move>east</move>"


class Count:
    """A tool that counts its calls, which is its state."""

    name = "move"

    def __init__(self) -> None:
        self.calls = 0

    async def call(self, argument: str) -> ToolResult:
        self.calls += 1
        await asyncio.sleep(0)  # the others get their turn
        return ToolResult(notice=f"{argument} {self.calls}")


class Counting:
    name = "counting"
    actions = ("move",)

    def __init__(self, made: Any = None) -> None:
        self.made = made or (lambda: {"move": Count()})
        self.episodes: list[str] = []

    def documents(self) -> Sequence[Any]:
        return ()

    def questions(self, split: str, count: int, objectives: int, seed: int) -> list[Question]:
        return [Question(f"{split}-{n}", "?", "3") for n in range(count)]

    def episode(self, question: Question) -> Mapping[str, Tool]:
        self.episodes.append(question.id)
        return self.made()


def agent(environment: Any, **limits: Any) -> Agent:
    made = make_agent(TOKENIZER, context="full", grammar=WITH_MOVE, **limits)
    return dataclasses.replace(made, environment=environment)


class Mover:
    """Moves `moves` times and then answers with what it was told last."""

    def __init__(self, moves: int) -> None:
        self._moves = moves

    async def generate(self, prompt_ids: Sequence[int], sampling: Any) -> Any:
        prompt = TOKENIZER.decode(prompt_ids)
        told = prompt.count("<tool_response>")
        last = prompt.rpartition("<tool_response>\n")[2].partition("\n")[0]
        text = "<move>east</move>" if told < self._moves else f"<answer>{last}</answer>"
        return await Scripted(TOKENIZER, [f"<think>t</think>{text}"]).generate(prompt_ids, sampling)


def play(environment: Any, rollouts: int = 4, moves: int = 3, **limits: Any) -> list[Trajectory]:
    jobs = [Job(Question("q", "?", "east 3"), n, ()) for n in range(rollouts)]
    return asyncio.run(run_rollouts(agent(environment, **limits), Mover(moves), jobs))


# --- the language --------------------------------------------------------------------------------------------------


def test_an_action_of_ones_own_is_an_action_and_keeps_the_rules() -> None:
    parsed = parse_turn(MOVED, 1, WITH_MOVE)
    assert (parsed.outcome, parsed.violations) == (ParseOutcome.OK, frozenset())
    assert parsed.action is not None
    assert (parsed.action.kind, parsed.action.text) == ("move", "east")
    assert WITH_MOVE.stop_strings == ("</move>", "</answer>")
    answer = parse_turn("<mem>n</mem><think>t</think><answer>a</answer>", 2, WITH_MOVE)
    assert format_violations([parse_turn(MOVED[12:], 0, WITH_MOVE), parsed, answer]) == {}


@pytest.mark.parametrize(
    ("text", "outcome", "violations"),
    [
        ("<mem>n</mem><move>east</move><think>t</think>", ParseOutcome.OK, {"order"}),
        ("<move>east</move><mem>n</mem><think>t</think>", ParseOutcome.OK, {"order"}),
        (MOVED + "<move>west</move>", ParseOutcome.TWO_ACTIONS, {"one_action"}),
        (MOVED + "<answer>a</answer>", ParseOutcome.TWO_ACTIONS, {"one_action"}),
        ("<mem>n</mem><think>t</think><move> </move>", ParseOutcome.EMPTY_ACTION, {"clean"}),
        ("<mem>n</mem><think>t</think><move>east", ParseOutcome.UNCLOSED_TAG, {"balanced"}),
        ("<mem>n</mem><think><move>east</move></think>", ParseOutcome.NO_ACTION, {"nesting", "one_action"}),
        ("<mem>n</mem><think>t</think><search>q</search>", ParseOutcome.ACTION_NOT_ALLOWED, {"one_action"}),
        ("<mem>n</mem><think>t</think></move><move>east</move>", ParseOutcome.OK, {"balanced"}),
    ],
)
def test_the_rules_hold_for_it_as_for_the_others(text: str, outcome: ParseOutcome, violations: set[str]) -> None:
    parsed = parse_turn(text, 1, WITH_MOVE)
    assert (parsed.outcome, parsed.violations) == (outcome, violations)


def test_to_everybody_else_the_tag_is_text() -> None:
    parsed = parse_turn(MOVED, 1, TurnGrammar())
    assert parsed.outcome is ParseOutcome.NO_ACTION
    assert parsed.violations == {"one_action", "clean"}
    assert [element.tag for element in scan(MOVED).elements] == ["mem", "think"]
    assert [element.tag for element in scan(MOVED, ("move",)).elements] == ["mem", "think", "move"]
    inside = "<mem>a <move>east</move> b</mem><think>t</think><search>q</search>"
    assert parse_turn(inside, 1, TurnGrammar()).violations == frozenset()
    assert parse_turn(inside, 1, TurnGrammar(actions=("move", "search"))).violations == {"nesting"}


def test_a_name_that_begins_another_is_no_other() -> None:
    grammar = TurnGrammar(actions=("move", "move_on"))
    parsed = parse_turn("<mem>n</mem><think>t</think><move_on>x</move_on>", 1, grammar)
    assert parsed.action is not None
    assert (parsed.action.kind, parsed.violations) == ("move_on", frozenset())


@pytest.mark.parametrize("action", ["Move", "", "go on", "2nd", "mo>ve", "mem", "think", "tool_response", 3])
def test_what_cannot_be_an_action_is_refused(action: Any) -> None:
    with pytest.raises(ConfigError, match="cannot be an action"):
        TurnGrammar(actions=(action, "answer"))


def test_an_action_stands_once() -> None:
    with pytest.raises(ConfigError, match="'move' is given twice"):
        TurnGrammar(actions=("move", "answer", "move"))
    assert TurnGrammar().action_tags == ACTION_TAGS
    assert set(TurnGrammar(actions=("move",)).action_tags) == {*ACTION_TAGS, "move"}
    assert "move" not in TAGS


# --- episodes ------------------------------------------------------------------------------------------------------


def test_rollouts_of_one_question_share_no_state() -> None:
    environment = Counting()
    assert isinstance(environment, InteractiveEnvironment)
    found = play(environment)
    assert [trajectory.answer for trajectory in found] == ["east 3"] * 4
    assert environment.episodes == ["q"] * 4


def test_tools_of_the_agent_stand_beside_those_of_the_episode() -> None:
    class Fixed(Count):
        name = "search"

    made = dataclasses.replace(
        agent(Counting()), tools={"search": Fixed()}, grammar=TurnGrammar(actions=("move", "search", "answer"))
    )
    texts = [
        "<think>t</think><search>a</search>",
        "<think>t</think><move>b</move>",
        "<think>t</think><answer>c</answer>",
    ]
    (found,) = asyncio.run(run_rollouts(made, Scripted(TOKENIZER, texts), [Job(Question("q", "?", "c"), 0, ())]))
    told = [TOKENIZER.decode(turn.observation.ids) for turn in found.turns if turn.observation]
    assert "a 1" in told[0]
    assert "b 1" in told[1]


def test_a_turn_without_action_names_the_actions_that_there_are() -> None:
    texts = ["<think>t</think>", "<think>t</think><search>q</search>", "<think>t</think><answer>c</answer>"]
    jobs = [Job(Question("q", "?", "c"), 0, ())]
    (found,) = asyncio.run(run_rollouts(agent(Counting()), Scripted(TOKENIZER, texts), jobs))
    told = [TOKENIZER.decode(turn.observation.ids) for turn in found.turns if turn.observation]
    assert all("end a turn with exactly one of: move, answer" in text for text in told)
    assert "not allowed here" in told[1]


def fails() -> Any:
    raise RuntimeError("no room\nleft")


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (fails, "RuntimeError: no room left"),
        (lambda: {"move": 3}, "'move': int, no tool"),
        (lambda: {"jump": Count()}, "'jump': Count, no tool"),
        (lambda: None, "TypeError"),
    ],
)
def test_an_episode_that_does_not_begin_is_an_infrastructure_error(made: Any, said: str) -> None:
    found = play(Counting(made), rollouts=2)
    assert [trajectory.stop for trajectory in found] == [StopReason.TOOL_ERROR] * 2
    assert all(trajectory.is_error and not trajectory.turns for trajectory in found)
    assert said in str(found[0].error)
    assert "\n" not in str(found[0].error)


def test_a_question_that_the_environment_refuses_ends_the_run() -> None:
    def refuses() -> Any:
        raise UserError("question q has no map")

    with pytest.raises(UserError, match="has no map"):
        play(Counting(refuses))


def test_a_failing_move_is_data() -> None:
    class Broken(Count):
        async def call(self, argument: str) -> ToolResult:
            return ToolResult(notice="gone", error=ToolErrorKind.UNAVAILABLE)

    (found,) = play(Counting(lambda: {"move": Broken()}), rollouts=1, max_tool_errors=1)
    assert (found.stop, found.error) == (StopReason.TOOL_ERROR, "gone")


# --- an agent of a configuration -----------------------------------------------------------------------------------


def test_the_grammar_holds_the_actions_of_environment_and_tools() -> None:
    config = resolve(None, ["agent.tools=[]", "prompt.template=plain"]).config
    made = agent_of(config, TOKENIZER, {}, Counting())
    assert made.grammar.actions == ("move", "answer")
    assert made.environment is not None
    both = agent_of(config, TOKENIZER, {"search": Count()}, Counting())
    assert both.grammar.actions == ("move", "search", "answer")
    plain = agent_of(config, TOKENIZER, {"search": Count()}, AtlasEnvironment())
    assert (plain.grammar.actions, plain.environment) == (("search", "answer"), None)
    assert not isinstance(AtlasEnvironment(), InteractiveEnvironment)


def test_two_that_answer_one_action_are_refused() -> None:
    class Searching(Counting):
        name = "searching"
        actions = ("search",)

    environment = Searching()
    assert isinstance(environment, Environment)
    config = resolve(None, ["prompt.template=plain"]).config
    with pytest.raises(ConfigError, match=r"agent\.tools: search is an action of environment searching already"):
        agent_of(config, TOKENIZER, {"search": Count()}, environment)
