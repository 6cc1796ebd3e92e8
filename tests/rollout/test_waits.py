"""A rollout that waits for long says for whom; many that wait say it once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from mempo.config.server import ServerSettings
from mempo.config.tools import RetrySettings, SearchSettings
from mempo.engine.server.capabilities import Capabilities
from mempo.engine.server.client import OpenAIClient
from mempo.engine.server.sampler import OpenAISampler
from mempo.retrieval.client import HttpRetriever
from mempo.rollout import waits
from mempo.rollout.agent import DecodingSettings, Job, rollout, run_rollouts
from mempo.rollout.interfaces import Generation, SamplingParams, ToolResult
from mempo.rollout.trajectory import StopReason
from mempo.tools.search import SearchTool
from tests.faults import FAULTS, faulty
from tests.tiny import Scripted, make_agent
from tests.train.fakes import ANSWER, SEARCH, TOKENIZER, Speaker, questions

ONCE = RetrySettings(tries=1)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(waits, "SLOW_S", 0.1)
    monkeypatch.setattr(waits, "_told_at", -1.0)
    caplog.set_level(logging.WARNING, "mempo")


def play(sampler: Any, **tools: Any) -> StopReason:
    agent = make_agent(TOKENIZER, tools=tools)
    return asyncio.run(rollout(agent, sampler, Job(questions(4)[3], 2, ("waits",)), DecodingSettings())).stop


@pytest.mark.parametrize("fault", ["is silent", "drips a body"])
def test_a_search_that_hangs_is_told_with_its_server_and_turn(fault: str, caplog: pytest.LogCaptureFixture) -> None:
    with faulty() as proxy, HttpRetriever(proxy.url, timeout_s=0.5, tries=2, backoff_s=0) as client:
        proxy.fault = FAULTS[fault]
        play(Scripted(TOKENIZER, [SEARCH, ANSWER]), search=SearchTool(client, SearchSettings(retry=ONCE)))
    first, *_, last = caplog.messages
    told = f"s for search: retrieval server at {proxy.url}, request "
    assert first.startswith("question 'q3', rollout 2, turn 1 has waited 0 ")
    assert first.endswith(f"{told}1")
    assert last.endswith(f"{told}2"), "retries are counted"


def test_a_model_server_that_hangs_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with faulty() as proxy, OpenAIClient(ServerSettings(url=proxy.url, timeout_s=0.5, retry=ONCE)) as client:
        proxy.fault = FAULTS["is silent"]
        sampler = OpenAISampler(client, TOKENIZER, Capabilities(client.base, "m", "completions"))
        assert play(sampler) is StopReason.SAMPLER_ERROR
    assert f"turn 1 has waited 0 s for the policy: model server at {proxy.url}, request 1" in caplog.text


class Hangs:
    name = "search"

    async def call(self, argument: str) -> ToolResult:
        await asyncio.sleep(0.5)
        return ToolResult(passages=("Paris",))


class Computes:
    """A policy in this process that takes its time."""

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> Generation:
        await asyncio.sleep(0.3)
        return await Scripted(TOKENIZER, [ANSWER]).generate(prompt_ids, sampling)


def test_an_own_tool_is_told_and_a_policy_that_computes_is_not(caplog: pytest.LogCaptureFixture) -> None:
    play(Computes())
    assert not caplog.messages
    play(Scripted(TOKENIZER, [SEARCH, ANSWER]), search=Hangs())
    assert caplog.messages[0].endswith("turn 1 has waited 0 s for search")


def test_of_many_the_longest_speaks(caplog: pytest.LogCaptureFixture) -> None:
    agent = make_agent(TOKENIZER, tools={"search": Hangs()}, max_turns=2)
    jobs = [Job(questions(1)[0], n, ("waits",)) for n in range(50)]
    asyncio.run(run_rollouts(agent, Speaker(lambda rng: SEARCH), jobs))
    assert 1 <= len(caplog.messages) <= 6, "not a line for each"
    assert "; 49 more wait as long" in caplog.text
    assert not waits._under_way
