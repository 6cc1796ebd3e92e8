"""What the policy did is a turn, and is scored; only transport and protocol failures are errors."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mempo.config.server import ServerSettings
from mempo.config.tools import RetrySettings
from mempo.engine.server.capabilities import Capabilities
from mempo.engine.server.client import OpenAIClient
from mempo.engine.server.sampler import OpenAISampler
from mempo.evaluate.metrics import summarise
from mempo.evaluate.runner import EvalSetup, record_of
from mempo.rewards.memory import MemorySettings
from mempo.rewards.outcome import OutcomeSettings
from mempo.rollout.agent import Job, run_rollouts
from mempo.rollout.interfaces import Generation, SamplingParams
from mempo.rollout.protocol import TurnGrammar
from mempo.rollout.question import objectives_of
from mempo.rollout.trajectory import GenerationStop, StopReason
from tests.evaluate.openai_stub import Stub, reply, stub_server
from tests.tiny import make_agent, make_tokenizer
from tests.train.fakes import questions

TOKENIZER = make_tokenizer()
STOPS = TurnGrammar().stop_strings
STOP, EOS, LENGTH = GenerationStop.STOP_STRING, GenerationStop.EOS, GenerationStop.LENGTH

SILENT: list[dict[str, Any]] = [
    {"message": {"content": None, "reasoning_content": "So it is Paris"}, "finish_reason": "stop"},
    {"message": {"role": "assistant", "tool_calls": [{"id": "1"}]}, "finish_reason": "tool_calls"},
    {"message": {"content": [], "refusal": "I cannot"}, "finish_reason": "content_filter"},
]


def sampler_of(url: str, **can: Any) -> OpenAISampler:
    client = OpenAIClient(ServerSettings(url=url, retry=RetrySettings(tries=1)))
    return OpenAISampler(client, TOKENIZER, Capabilities(client.base, "m", **{"api": "completions", **can}))


def test_a_model_that_only_thinks_is_wrong_and_counted() -> None:
    """Half of six questions answered: EM 50 % over 6, whatever keeps the other half silent."""
    asked = questions(6)
    agent = make_agent(TOKENIZER)

    def answers(number: int) -> Any:
        said = stub.bodies[number]["messages"][-1]["content"]
        place = next(i for i, question in enumerate(asked) if question.text in said)
        name = objectives_of(asked[place].gold)[0][0]
        right = {"message": {"content": f"<answer>{name}</answer>"}, "finish_reason": "stop"}
        return reply({"choices": [right if place % 2 else SILENT[place // 2]]})

    stub = Stub(TOKENIZER, fault=answers)
    with stub_server(stub), sampler_of(stub.url, api="chat") as sampler:
        done = asyncio.run(run_rollouts(agent, sampler, [Job(question, 0, (0,)) for question in asked]))
    assert [trajectory.is_error for trajectory in done] == [False] * 6
    assert {trajectory.stop for trajectory in done[::2]} == {StopReason.TURN_LIMIT}
    assert all(turn.parsed.action is None for trajectory in done[::2] for turn in trajectory.turns)
    setup = EvalSetup(agent, sampler, None, OutcomeSettings(), MemorySettings(), 0)
    lines = [
        {**record_of(setup, question, trajectory), "stop": trajectory.stop}
        for question, trajectory in zip(asked, done, strict=True)
    ]
    metrics = summarise(lines)
    assert (metrics["em"], metrics["questions"], metrics["errors"]) == (0.5, 6, 0)


def generated(text: str, limit: int = 16, completion_tokens: int | None = None, **more: Any) -> Generation:
    """What a server without ids and named stops gives."""
    can = {key: more.pop(key) for key in ("stop_field", "window_tokens") if key in more}
    usage = {"usage": {"completion_tokens": completion_tokens, **more.pop("usage", {})}} if completion_tokens else {}
    choice = {"text": text, "finish_reason": "stop", **more}
    stub = Stub(TOKENIZER, fault=lambda number: reply({"choices": [choice], **usage}))
    with stub_server(stub), sampler_of(stub.url, stop_string="removed", **can) as sampler:
        return asyncio.run(sampler.generate((5, 6), SamplingParams(limit, stop=STOPS)))


@pytest.mark.parametrize(
    ("text", "fields", "whole", "stop"),
    [
        ("<answer>Paris is not the capital", {"completion_tokens": 16}, "<answer>Paris is not the capital", LENGTH),
        ("<search>capital of Fr", {"completion_tokens": 16}, "<search>capital of Fr", LENGTH),
        ("<search>capital of Fr", {"completion_tokens": 17}, "<search>capital of Fr", LENGTH),
        ("<search>France</sea", {"completion_tokens": 16}, "<search>France</sea", LENGTH),
        ("<search>France</sea", {"completion_tokens": 12}, "<search>France</search>", STOP),
        ("<search>France", {"completion_tokens": 15}, "<search>France</search>", STOP),
        ("<search>France</search>", {"completion_tokens": 16}, "<search>France</search>", STOP),
        # the server's window comes before the limit
        (
            "<search>Fr",
            {"completion_tokens": 6, "usage": {"prompt_tokens": 14}, "window_tokens": 20},
            "<search>Fr",
            LENGTH,
        ),
        # a server that names its stops
        ("<search>Fr", {"completion_tokens": 16, "stop_field": "stop_reason"}, "<search>Fr", LENGTH),
        ("<search>Fr", {"completion_tokens": 16, "stop_field": "stop_reason", "stop_reason": 3}, "<search>Fr", EOS),
        (
            "<search>Fr",
            {"completion_tokens": 16, "stop_field": "stop_reason", "stop_reason": "</search>"},
            "<search>Fr</search>",
            STOP,
        ),
    ],
)
def test_a_reply_at_its_limit_is_closed_by_nobody(
    text: str, fields: dict[str, Any], whole: str, stop: GenerationStop
) -> None:
    generation = generated(text, **fields)
    ids = generation.ids[:-1] if stop is EOS else generation.ids
    assert (TOKENIZER.decode(ids), generation.stop) == (whole, stop)


@pytest.mark.parametrize(("beyond", "stop"), [(0, STOP), (-1, LENGTH)])
def test_a_server_that_counts_nothing_is_counted_for(beyond: int, stop: GenerationStop) -> None:
    text = "<search>the capital of France"
    with_stop = len(TOKENIZER.encode_trusted(f"{text}</search>"))
    assert generated(text, limit=with_stop + beyond).stop is stop
