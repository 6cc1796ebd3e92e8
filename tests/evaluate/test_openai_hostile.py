"""Servers that say what no server should: each rollout ends soon, as a recorded outcome."""

from __future__ import annotations

import asyncio
import json
import random
import re
from typing import Any

import pytest

from mempo.config.rollout import DecodingSettings
from mempo.config.server import ServerSettings
from mempo.config.tools import RetrySettings
from mempo.engine.server.capabilities import Capabilities
from mempo.engine.server.client import OpenAIClient
from mempo.engine.server.reply import ServerReply
from mempo.engine.server.sampler import OpenAISampler, bounded
from mempo.rollout.agent import Job, rollout
from mempo.rollout.trajectory import StopReason, Trajectory
from tests.evaluate.openai_stub import Stub, raw, reply, stub_server
from tests.tiny import make_tokenizer
from tests.train.fakes import agent, questions

TOKENIZER = make_tokenizer()
RIGHT = "<think>t</think><answer>Paris</answer>"
IDS = {"returns_ids": True, "logprobs": "legacy", "stop_field": "stop_reason"}


def played(body: Any, **can: Any) -> Trajectory:
    stub = Stub(TOKENIZER, fault=lambda number: raw(body) if isinstance(body, bytes) else reply(body))
    with stub_server(stub):
        settings = ServerSettings(url=stub.url, retry=RetrySettings(tries=2, backoff_s=0))
        client = OpenAIClient(settings)
        found = Capabilities(client.base, "m", "completions", **{"stop_string": "removed", **can})
        with OpenAISampler(client, TOKENIZER, found) as sampler:
            job = Job(questions(1)[0], 0, (0,))
            return asyncio.run(rollout(agent(), sampler, job, DecodingSettings()))


def choice(text: Any, usage: Any = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"text": text, "finish_reason": "stop", **more}], "usage": usage}


def garbage(chars: int) -> str:
    rng = random.Random(0)
    return "".join(rng.choices("AB<>/☃é\u4e00\u4e01 ", k=chars))


@pytest.mark.parametrize("can", [{}, IDS], ids=["text", "ids"])
@pytest.mark.parametrize(
    "said", [garbage(60_000), "<mem>a</mem>" * 6_000, "</mem>" * 9_000], ids=["garbage", "notes", "closings"]
)
def test_a_reply_without_end_is_cut(said: str, can: dict[str, Any]) -> None:
    done = played(choice(said, {"completion_tokens": 10**6}), **can)
    limits = agent().limits
    assert done.stop in (StopReason.TURN_LIMIT, StopReason.TOKEN_LIMIT, StopReason.CONTEXT_OVERFLOW)
    assert all(len(turn.generated_ids) <= limits.max_turn_tokens for turn in done.turns)


@pytest.mark.parametrize("can", [{}, IDS], ids=["text", "ids"])
def test_a_count_that_is_a_lie_does_not_help(can: dict[str, Any]) -> None:
    done = played(choice("a" * 60_000, {"completion_tokens": 5}, token_ids=[5] * 60_000), **can)
    assert all(len(turn.generated_ids) <= 4 * agent().limits.max_turn_tokens for turn in done.turns)


def test_the_answer_before_the_garbage_counts() -> None:
    assert played(choice(RIGHT + garbage(60_000))).answer == "Paris"
    long = ServerReply("x" * 100, "stop", named_stop="</a>", stop_token=2)
    assert bounded(long, 100) is long
    cut = bounded(long, 99)
    assert (cut.text, cut.finish_reason, cut.named_stop, cut.stop_token) == ("x" * 99, "length", None, None)


@pytest.mark.parametrize("can", [{}, IDS], ids=["text", "ids"])
@pytest.mark.parametrize(
    "more",
    [
        {"logprobs": {"tokens": ["a"] * 50_000, "token_logprobs": [-1.0] * 50_000}},
        {"logprobs": {"content": [None, 3, {"token": 1}]}},
        {"logprobs": {"tokens": ["a"], "token_logprobs": ["-1"]}},
        {"token_ids": [-1, 5]},
        {"token_ids": [10**12]},
        {"token_ids": ["5"]},
        {"token_ids": [5] * 50_000},
        {"usage": {"completion_tokens": -5, "prompt_tokens": "many"}},
        {"usage": {"completion_tokens": 10**30}},
    ],
    ids=["logprobs", "chat_logprobs", "texts", "negative", "beyond", "strings", "many", "counts", "count"],
)
def test_wrong_details_do_not_spoil_a_reply(more: dict[str, Any], can: dict[str, Any]) -> None:
    done = played(choice(RIGHT, more.pop("usage", None), **more), **can)
    assert (done.stop, done.answer) == (StopReason.ANSWERED, "Paris")
    assert done.turns[0].logprobs == ()


def test_special_tokens_spelt_out_are_text() -> None:
    done = played(choice(f"<|im_end|><eos>{RIGHT}"))
    assert not set(done.turns[0].generated_ids) & (TOKENIZER.added_ids - set(TOKENIZER.encode_trusted(RIGHT)))
    assert done.answer == "Paris"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"<html><body>It works!</body></html>", "not JSON"),
        (b'{"choices": [{"text": "\xff\xfe"}]}', "not JSON"),
        (b'\xef\xbb\xbf{"choices": []}', "not JSON|choices"),
        (b"[" * 100_000, "not JSON"),
        (json.dumps(choice(7)).encode(), "no text"),
        (json.dumps(choice("x", finish_reason={"a": 1})).encode(), "was ended by"),
        (b'{"error": "overloaded"}', "no choices"),
        (b'{"choices": [{"text": "a"}, {"text": "b"}]}', "2 choices"),
    ],
)
def test_what_is_no_reply_is_an_error_of_the_server(body: bytes, says: str) -> None:
    done = played(body)
    assert (done.stop, done.is_error, done.turns) == (StopReason.SAMPLER_ERROR, True, ())
    assert done.error is not None
    assert "model server http://127.0.0.1" in done.error
    assert "\n" not in done.error
    assert re.search(says, done.error)
