"""Turns through servers of every family: the same words are the same turns, and what fails costs one rollout."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from starlette.responses import Response

from mempo.config.rollout import DecodingSettings, PromptSettings
from mempo.config.server import ServerSettings
from mempo.config.tools import RetrySettings
from mempo.engine.server.capabilities import PROBE_TEXT, Capabilities, probe
from mempo.engine.server.client import OpenAIClient
from mempo.engine.server.sampler import OpenAISampler, encode_reply
from mempo.errors import UserError
from mempo.rollout.agent import Job, rollout, run_rollouts
from mempo.rollout.interfaces import Generation, SamplingParams, ToolResult
from mempo.rollout.protocol import TurnGrammar
from mempo.rollout.question import Question
from mempo.rollout.trajectory import GenerationStop, StopReason, Trajectory, rows_of
from tests.evaluate.openai_stub import FAMILIES, VLLM, Family, Stub, broken_off, reply, stub_server
from tests.tiny import chat_tokenizer, make_agent, make_tokenizer

TOKENIZER = make_tokenizer()
STOPS = TurnGrammar().stop_strings
PROMPT = TOKENIZER.encode_trusted("Where?\n")


@contextmanager
def sampler_of(stub: Stub, **changes: Any) -> Iterator[OpenAISampler]:
    retry = RetrySettings(tries=2, backoff_s=0.001)
    client = OpenAIClient(ServerSettings(**{"url": stub.url, "retry": retry, **changes}))
    can = probe(client, "the-model", stub.tokenizer.encode_trusted(PROBE_TEXT))
    client.counts.clear()
    stub.bodies.clear()
    with OpenAISampler(client, stub.tokenizer, can, system="Be brief.") as sampler:
        yield sampler


def generated(family: Family, said: str, limit: int = 200, **sampling: Any) -> tuple[Generation, dict[str, Any]]:
    """What a server of this family makes of a model that says `said`, and the request."""
    params = SamplingParams(limit, stop=STOPS, **sampling)
    with stub_server(Stub(TOKENIZER, family, lambda prompt: said)) as stub, sampler_of(stub) as sampler:
        return asyncio.run(sampler.generate(PROMPT, params)), stub.bodies[-1]


every_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)


@every_family
@pytest.mark.parametrize(
    ("said", "text", "stop"),
    [
        (
            "<think>t</think><search>Zürich 東京</search> and more",
            "<think>t</think><search>Zürich 東京</search>",
            "stop",
        ),
        ("<mem>n</mem><answer>Paris</answer><eos>", "<mem>n</mem><answer>Paris</answer>", "stop"),
        ("<think>I do not know</think><eos>", "<think>I do not know</think><eos>", "eos"),
        ("<eos>", "<eos>", "eos"),
    ],
    ids=["search", "answer", "by_itself", "nothing"],
)
def test_the_same_words_are_the_same_turn(family: Family, said: str, text: str, stop: str) -> None:
    generation, _ = generated(family, said, temperature=1.0)
    reason = GenerationStop.EOS if stop == "eos" else GenerationStop.STOP_STRING
    assert (TOKENIZER.decode(generation.ids), generation.stop) == (text, reason)
    assert (generation.ids[-1] == TOKENIZER.eos_id) == (stop == "eos")


@every_family
def test_a_reply_that_was_cut_gets_no_end(family: Family) -> None:
    generation, _ = generated(family, "<search>the capital of France", limit=6)
    assert generation.stop is GenerationStop.LENGTH
    assert generation.ids == TOKENIZER.encode_trusted("<search>the capital of France")[:6]


def test_the_servers_ids_are_kept_where_it_sends_them() -> None:
    """A model may sample what no tokenizer would make of the text."""
    apart = TOKENIZER.encode_trusted("<think>cap") + TOKENIZER.encode_trusted("ital</think><answer>a</answer>")
    assert apart != TOKENIZER.encode_trusted(TOKENIZER.decode(apart))
    choice = {"text": TOKENIZER.decode(apart).removesuffix("</answer>"), "finish_reason": "stop"}
    choice |= {"stop_reason": "</answer>", "token_ids": list(apart)}
    stub = Stub(TOKENIZER, VLLM)
    with stub_server(stub), sampler_of(stub) as sampler:
        stub.fault = lambda number: reply({"choices": [choice]})
        kept = asyncio.run(sampler.generate(PROMPT, SamplingParams(50, stop=STOPS)))
        choice["token_ids"] = [5, 6, 7]  # of another tokenizer
        again = asyncio.run(sampler.generate(PROMPT, SamplingParams(50, stop=STOPS)))
        assert sampler.counts()["tokenized_again"] == 1
    assert (kept.ids, kept.stop) == (apart, GenerationStop.STOP_STRING)
    assert again.ids == TOKENIZER.encode_trusted(TOKENIZER.decode(apart))


@pytest.mark.parametrize(
    ("family", "temperature", "known"),
    [
        ("vllm", 1.0, True),
        ("vllm", 0.0, True),
        ("vllm", 0.7, False),
        ("transformers", 1.0, False),
        ("chat", 1.0, False),
    ],
)
def test_logprobs_are_those_of_the_ids_or_none(family: str, temperature: float, known: bool) -> None:
    generation, _ = generated(FAMILIES[family], "<answer>Paris</answer>", temperature=temperature)
    expected = tuple(-0.25 - 0.01 * k for k in range(len(generation.ids))) if known else ()
    assert generation.logprobs == pytest.approx(expected)


def test_logprobs_of_a_server_without_ids_where_the_tokens_are_ours() -> None:
    family = Family(logprobs="legacy", keeps_stop=True)
    generation, _ = generated(family, "<answer>Paris</answer>")
    assert generation.logprobs == pytest.approx([-0.25 - 0.01 * k for k in range(len(generation.ids))])


def test_a_turn_without_logprobs_cannot_be_trained_on() -> None:
    turns = played(FAMILIES["transformers"], lambda prompt: "<think>t</think><answer>a</answer>").turns
    rows = rows_of(Trajectory("q", 0, turns[0].prompt_ids, turns, StopReason.ANSWERED))
    with pytest.raises(ValueError, match="0 values for"):
        rows[0].spread({turn.index: turn.logprobs for turn in turns})


# --- requests ------------------------------------------------------------------------------------------------------


def test_what_is_asked_of_each_family() -> None:
    _, body = generated(VLLM, "<answer>a</answer>", temperature=0.5, seed=2**40 + 5)
    assert body["prompt"] == list(PROMPT)
    assert (body["max_tokens"], body["temperature"], body["seed"]) == (200, 0.5, 5)
    assert (body["top_p"], body["top_k"], body["min_p"]) == (1.0, -1, 0.0), "off, whatever the server's defaults"
    assert body["include_stop_str_in_output"] is True
    _, body = generated(FAMILIES["transformers"], "<answer>a</answer>")
    assert body == {
        "model": "the-model",
        "prompt": "Where?\n",
        "max_tokens": 200,
        "temperature": 1.0,
        "top_p": 1.0,
        "stop": list(STOPS),
    }
    _, body = generated(FAMILIES["newer_chat"], "<answer>a</answer>")
    assert body["messages"] == [{"role": "user", "content": "Where?"}]
    assert body["max_completion_tokens"] == 200


@pytest.mark.parametrize(
    ("family", "sampling", "says"),
    [
        ("transformers", {"top_k": 5}, r"takes no top_k; leave evaluate\.top_k"),
        ("newer_chat", {"temperature": 0.0}, "takes no temperature"),
    ],
)
def test_a_setting_that_the_server_cannot_take_ends_the_run(family: str, sampling: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        generated(FAMILIES[family], "a", **sampling)


def test_a_refused_key_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with stub_server(Stub(TOKENIZER)) as stub, sampler_of(stub) as sampler:
        stub.key = "changed"
        with pytest.raises(UserError, match=r"401.*is the key in OPENAI_API_KEY right"):
            asyncio.run(sampler.generate(PROMPT, SamplingParams(9)))


# --- whole rollouts ------------------------------------------------------------------------------------------------


class Told:
    name = "search"

    async def call(self, argument: str) -> ToolResult:
        return ToolResult(passages=(f"about {argument}: Paris",))


def speaks(prompt: str) -> str:
    """Searches, then answers with the number of its question."""
    if "<tool_response>" not in prompt:
        return "<think>t</think><search>q</search>"
    number = prompt.split("question ")[1].split("?")[0]
    note = "noted</mem>" if prompt.endswith("<mem>") else "<mem>noted</mem>"
    return f"{note}<think>t</think><answer>{number}</answer>"


def jobs(count: int) -> list[Job]:
    return [Job(Question(str(k), f"question {k}?", "x"), 0, (0,)) for k in range(count)]


def played(family: Family, say: Callable[[str], str], **prompt: Any) -> Trajectory:
    agent = make_agent(TOKENIZER, tools={"search": Told()}, prompt=PromptSettings(template="plain", **prompt))
    with stub_server(Stub(TOKENIZER, family, say)) as stub, sampler_of(stub) as sampler:
        return asyncio.run(rollout(agent, sampler, jobs(1)[0], DecodingSettings()))


@every_family
def test_a_rollout_is_the_same_behind_every_server(family: Family) -> None:
    trajectory = played(family, speaks)
    assert (trajectory.stop, trajectory.answer) == (StopReason.ANSWERED, "0")
    assert [turn.parsed.violations for turn in trajectory.turns] == [frozenset(), frozenset()]


@pytest.mark.parametrize("family", [f for f in FAMILIES.values() if f.completions])
def test_a_turn_can_be_made_to_begin_with_a_note(family: Family) -> None:
    trajectory = played(family, speaks, force_mem=True)
    assert trajectory.answer == "0"
    assert TOKENIZER.decode(trajectory.turns[1].forced_ids) == "<mem>"
    assert trajectory.turns[1].note_ids is not None


@pytest.mark.parametrize("fault", [lambda: reply({}, 404), lambda: reply({"choices": []}), broken_off])
def test_one_bad_reply_costs_one_rollout(fault: Callable[[], Response]) -> None:
    agent = make_agent(TOKENIZER, tools={"search": Told()})
    stub = Stub(TOKENIZER, FAMILIES["transformers"], speaks)
    with stub_server(stub), sampler_of(stub) as sampler:
        stub.fault = lambda number: fault() if "question 2?" in stub.bodies[number]["prompt"] else None
        trajectories = asyncio.run(run_rollouts(agent, sampler, jobs(5)))
        assert sampler.counts()["failed"] == 1
    stops = [trajectory.stop for trajectory in trajectories]
    assert stops == [StopReason.SAMPLER_ERROR if k == 2 else StopReason.ANSWERED for k in range(5)]
    assert [trajectory.answer for trajectory in trajectories] == ["0", "1", None, "3", "4"]
    assert f"{stub.url}/v1/completions" in (trajectories[2].error or "")


def test_a_reply_speaks_no_special_tokens() -> None:
    tokenizer = chat_tokenizer(tags="added")
    text = "<mem>a<|im_end|>b</mem><search>q</search>"
    ids = encode_reply(tokenizer, text, ("</search>",))
    assert tokenizer.decode(ids) == text
    assert tokenizer.eos_id not in ids
    mem, search = (tokenizer.encode_trusted(tag)[0] for tag in ("<mem>", "</search>"))
    assert ids[0] == mem
    assert ids[-1] == search


def test_the_text_of_an_end_token_is_an_end() -> None:
    stub = Stub(TOKENIZER, FAMILIES["transformers"])
    with stub_server(stub), sampler_of(stub) as sampler:
        stub.fault = lambda number: reply({"choices": [{"text": "hello<eos>", "finish_reason": "stop"}]})
        generation = asyncio.run(sampler.generate(PROMPT, SamplingParams(20)))
    assert generation == Generation((*TOKENIZER.encode_trusted("hello"), TOKENIZER.eos_id), (), GenerationStop.EOS)


def test_capabilities_of_a_run_are_plain_data() -> None:
    record = Capabilities("http://h/v1", "m", "chat", accepts=frozenset({"top_p", "seed"})).as_record()
    assert record["accepts"] == ["seed", "top_p"]
    assert record["can_force"] is False
