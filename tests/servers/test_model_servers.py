"""The sampler against real servers with a real model: `make test-servers`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console

from mempo.config.rollout import DecodingSettings, PromptSettings
from mempo.config.server import ServerSettings
from mempo.engine.server.connect import OpenedServer, open_server
from mempo.rollout.agent import Job, run_rollouts
from mempo.rollout.interfaces import Generation, SamplingParams, ToolResult
from mempo.rollout.question import Question
from mempo.rollout.trajectory import GenerationStop, StopReason
from tests.servers.start import Running, named_server, transformers_serve, xllamacpp
from tests.tiny import make_agent

pytestmark = pytest.mark.servers

# A server that somebody started is asked in place of those that are started here.
NAMED = "MEMPO_SERVER_URL" in os.environ
SERVERS = {"named": named_server} if NAMED else {"xllamacpp": xllamacpp, "transformers": transformers_serve}
FOUND = {
    "xllamacpp": {"token_prompts": True, "stop_string": "removed", "logprobs": "chat", "returns_ids": True},
    "transformers": {"token_prompts": False, "stop_string": "kept", "logprobs": "none", "returns_ids": False},
}

STOPS = ("</search>", "</answer>")
# Two shots are enough for 135 M parameters to go on in the same way.
SHOTS = "".join(
    f"Q: capital of {country}?\n<mem>none</mem><think>I will search.</think><search>capital of {country}</search>\n"
    for country in ("France", "Peru")
)
PROMPT = f"{SHOTS}Q: capital of Japan?\n<mem>none</mem><think>"
TURN = "I will search.</think><search>capital of Japan</search>"


@pytest.fixture(scope="module", params=SERVERS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def server(name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with SERVERS[name](tmp_path_factory.mktemp(name) / "log.txt") as server:
        yield server


@pytest.fixture(scope="module")
def opened(server: Running) -> Iterator[OpenedServer]:
    settings = ServerSettings(url=server.url, tokenizer=server.tokenizer)
    opened = open_server(settings, Console(width=300), PromptSettings(template="plain", force_mem=True))
    with opened.sampler:
        yield opened


def generate(opened: OpenedServer, prompt: str, *sampling: SamplingParams) -> list[Generation]:
    ids = opened.tokenizer.encode_trusted(prompt)

    async def all_at_once() -> list[Generation]:
        return list(await asyncio.gather(*(opened.sampler.generate(ids, one) for one in sampling)))

    return asyncio.run(all_at_once())


def test_what_is_found_out(name: str, opened: OpenedServer) -> None:
    record = opened.capabilities.as_record()
    assert (record["api"], record["can_force"], record["tokenizer_agrees"]) == ("completions", True, True)
    assert {key: record[key] for key in FOUND.get(name, {})} == FOUND.get(name, {})


def test_a_turn_ends_with_its_stop_string(opened: OpenedServer) -> None:
    greedy = SamplingParams(40, temperature=0.0, stop=STOPS, seed=1)
    first, second = generate(opened, PROMPT, greedy, greedy)
    assert first.stop is GenerationStop.STOP_STRING
    assert opened.tokenizer.decode(first.ids) == TURN
    assert second.ids == first.ids
    assert len(first.logprobs) in (0, len(first.ids))


def test_a_turn_that_is_cut_gets_no_end(opened: OpenedServer) -> None:
    (cut,) = generate(opened, PROMPT, SamplingParams(10, temperature=0.0, stop=STOPS))
    assert (cut.stop, len(cut.ids)) == (GenerationStop.LENGTH, 10)
    text = opened.tokenizer.decode(cut.ids)
    assert TURN.startswith(text)
    assert "<search>" in text
    assert "</search>" not in text


def test_whole_rollouts_with_forced_notes(opened: OpenedServer) -> None:
    class Told:
        name = "search"

        async def call(self, argument: str) -> ToolResult:
            return ToolResult(passages=("Tokyo is the capital of Japan.",))

    limits: dict[str, Any] = {"max_turns": 2, "max_turn_tokens": 24, "max_context_tokens": 900, "max_obs_tokens": 80}
    agent = make_agent(opened.tokenizer, tools={"search": Told()}, prompt=opened.prompt, **limits)
    jobs = [Job(Question(str(k), f"{SHOTS}Q: capital of Japan?", "Tokyo"), k, (0,)) for k in range(3)]
    played = asyncio.run(run_rollouts(agent, opened.sampler, jobs, DecodingSettings(temperature=1.0)))
    assert all(trajectory.stop is not StopReason.SAMPLER_ERROR for trajectory in played)
    assert all(trajectory.turns for trajectory in played)
    second_turns = [trajectory.turns[1] for trajectory in played if len(trajectory.turns) > 1]
    assert second_turns
    assert {opened.tokenizer.decode(turn.forced_ids) for turn in second_turns} == {"<mem>"}
    assert opened.sampler.counts()["failed"] == 0
