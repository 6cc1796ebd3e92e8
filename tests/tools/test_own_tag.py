"""A tool with a tag of its own: told to the policy, stopped at, carried out, refused where it cannot be."""

from __future__ import annotations

import asyncio
import sys
from types import ModuleType
from typing import Any

import pytest
from examples.own_calculator import Calculator

from mempo.config import resolve
from mempo.engine.server.reply import ServerReply
from mempo.engine.server.stop_reason import ending
from mempo.errors import ConfigError
from mempo.rollout.agent import DecodingSettings, Job, rollout
from mempo.rollout.interfaces import Tool, ToolErrorKind, ToolResult
from mempo.rollout.question import Question
from mempo.rollout.trajectory import GenerationStop, StopReason
from mempo.setup import make_agent, make_tools
from tests.tiny import Scripted, chat_tokenizer, make_tokenizer

CALCULATOR = "agent.tools=[examples.own_calculator:Calculator]"
TOLD = f"Beside the actions you know, a turn may end with:\n- <calculate>…</calculate>: {Calculator.description}"


def agent_with(*overrides: str, tokenizer: Any = None) -> Any:
    config = resolve(None, [CALCULATOR, *overrides]).config
    return make_agent(config, tokenizer or make_tokenizer(), make_tools(config, None))


@pytest.mark.parametrize(
    ("system", "before"),
    [("You are a helpful assistant.", "You are a helpful assistant.\n\n" + TOLD + "\n\n"), ("", TOLD + "\n\n")],
)
def test_the_policy_is_told_in_the_system_prompt(system: str, before: str) -> None:
    agent = agent_with("prompt.template=plain", f"prompt.system={system}")
    tokenizer = agent.renderer.tokenizer
    assert tokenizer.decode(agent.renderer.question("3 * 4?")) == before + "3 * 4?\n"


def test_a_chat_template_shows_it_in_the_system_message_or_before_the_question() -> None:
    agent = agent_with(tokenizer=chat_tokenizer())
    text = agent.renderer.tokenizer.decode(agent.renderer.question("3 * 4?"))
    assert text.startswith(f"<|im_start|>system\nYou are a helpful assistant.\n\n{TOLD}<|im_end|>")
    agent = agent_with("prompt.system=", tokenizer=chat_tokenizer("refuses_system"))
    text = agent.renderer.tokenizer.decode(agent.renderer.question("3 * 4?"))
    assert text.startswith(f"<|im_start|>user\n{TOLD}\n\n3 * 4?")


def test_an_agent_without_such_a_tool_is_told_nothing() -> None:
    config = resolve(None, ["agent.tools=[examples.own_tool:MoonTool]", "prompt.template=plain"]).config
    agent = make_agent(config, make_tokenizer(), make_tools(config, None))
    assert agent.renderer.tokenizer.decode(agent.renderer.question("Q?")) == "You are a helpful assistant.\n\nQ?\n"


@pytest.mark.parametrize("tags", ["none", "added"])
def test_its_tag_ends_a_turn_and_is_carried_out(tags: str) -> None:
    agent = agent_with(tokenizer=make_tokenizer("byte_bpe", tags))
    texts = [
        "<think>t</think><calculate>3 * (2 + 4)</calculate>",
        "<mem>18</mem><think>t</think><calculate>1 / 0</calculate>",
        "<mem>18</mem><think>t</think><search>no such tool</search>",
        "<mem>18</mem><think>t</think><answer>18</answer>",
    ]
    sampler = Scripted(agent.renderer.tokenizer, texts)
    job = Job(Question("q", "3 * (2 + 4)?", "18"), 0, ())
    trajectory = asyncio.run(rollout(agent, sampler, job, DecodingSettings()))
    assert sampler.asked[0].stop == ("</calculate>", "</answer>")
    assert (trajectory.stop, trajectory.answer) == (StopReason.ANSWERED, "18")
    seen = [agent.renderer.tokenizer.decode(t.observation.ids) for t in trajectory.turns[:3] if t.observation]
    assert "3 * (2 + 4) = 18" in seen[0]
    assert "error: '1 / 0' is float division by zero" in seen[1]
    assert "not allowed here; end a turn with exactly one of: calculate, answer" in seen[2]
    assert [t.parsed.action.kind if t.parsed.action else None for t in trajectory.turns] == [
        "calculate",
        "calculate",
        None,
        "answer",
    ]
    assert not trajectory.turns[0].parsed.violations


def test_a_server_that_removes_the_stop_string_gets_it_back() -> None:
    stops = agent_with().grammar.stop_strings
    reply = ServerReply(text="<think>t</think><calculate>3 * 4", finish_reason="stop")
    assert ending(reply, stops, names_stops=False) == (reply.text + "</calculate>", GenerationStop.STOP_STRING)


@pytest.mark.parametrize("argument", ["", "__import__('os')", "2 ** 9", "True + 1", "1 +", "(" * 300, "\0", "9" * 199])
def test_the_example_evaluates_arithmetic_alone(argument: str) -> None:
    result = asyncio.run(Calculator().call(argument))
    assert result.error is (None if argument == "9" * 199 else ToolErrorKind.BAD_CALL)
    assert isinstance(Calculator(), Tool)


# --- refused -------------------------------------------------------------------------------------------------------


def own(**members: Any) -> type:
    async def call(self: Any, argument: str) -> ToolResult:
        return ToolResult()

    return type("Own", (), {"call": call, **members})


OWN: dict[str, Any] = {
    "Mem": own(name="mem", description="x"),
    "Think": own(name="think", description="x"),
    "Answer": own(name="answer", description="x"),
    "Response": own(name="tool_response", description="x"),
    "Capital": own(name="Calculate", description="x"),
    "Spaced": own(name="cal culate", description="x"),
    "Silent": own(name="calculate"),
    "Blank": own(name="calculate", description=" "),
    "Nameless": own(description="x"),
    "Number": own(name=5, description="x"),
    "Search": own(name="search"),
    "Calculate": own(name="calculate", description="x"),
}


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        ("own_tags:Mem", "answers 'mem', but that tag means something else"),
        ("own_tags:Think", "answers 'think', but that tag means something else"),
        ("own_tags:Answer", "answers 'answer', but that tag means something else"),
        ("own_tags:Response", "answers 'tool_response', but that tag means something else"),
        ("own_tags:Capital", "'Calculate', which cannot be a tag"),
        ("own_tags:Spaced", "'cal culate', which cannot be a tag"),
        ("own_tags:Silent", "answers 'calculate' but has no `description`"),
        ("own_tags:Blank", "answers 'calculate' but has no `description`"),
        ("own_tags:Nameless", "a tool has an async `call(argument)` and a `name`"),
        ("own_tags:Number", "a tool has an async `call(argument)` and a `name`"),
        (
            "own_tags:Calculate,examples.own_calculator:Calculator",
            "answers 'calculate', which another tool",
        ),
    ],
)
def test_a_tool_that_cannot_be_is_one_line(tools: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("own_tags")
    vars(module).update(OWN)
    monkeypatch.setitem(sys.modules, "own_tags", module)
    config = resolve(None, [f"agent.tools=[{tools}]"]).config
    with pytest.raises(ConfigError) as error:
        make_tools(config, None)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_search_tool_needs_no_description(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("own_tags")
    vars(module).update(OWN)
    monkeypatch.setitem(sys.modules, "own_tags", module)
    assert list(make_tools(resolve(None, ["agent.tools=[own_tags:Search]"]).config, None)) == ["search"]


@pytest.mark.parametrize("tools", ["search,search", "access,search,access", "a:B,a:B"])
def test_a_tool_named_twice_is_refused_with_the_settings(tools: str) -> None:
    with pytest.raises(ConfigError, match="is given twice; name it once"):
        resolve(None, [f"agent.tools=[{tools}]"])
