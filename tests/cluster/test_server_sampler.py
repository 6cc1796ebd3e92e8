"""verl's rollout servers as a sampler."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from mempo.cluster.run import decoding_of
from mempo.cluster.server_sampler import ServerSampler
from mempo.rollout.interfaces import Generation, SamplerError, SamplingParams
from mempo.rollout.trajectory import GenerationStop
from tests import tiny

TOKENIZER = tiny.make_tokenizer(tags="added")


@dataclass
class Output:
    token_ids: list[int]
    log_probs: list[float] | None
    stop_reason: str | None = "completed"
    extra_fields: dict[str, Any] = field(default_factory=lambda: {"global_steps": 4})


class Client:
    def __init__(self, output: Output | Exception) -> None:
        self.output, self.asked = output, {}

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> Any:
        self.asked = {"request_id": request_id, "prompt_ids": prompt_ids, **sampling_params}
        if isinstance(self.output, Exception):
            raise self.output
        return self.output


def ask(output: Output | Exception, max_new_tokens: int = 50) -> tuple[Generation, Client, ServerSampler]:
    client = Client(output)
    sampler = ServerSampler(client, TOKENIZER, "uid_1")
    params = SamplingParams(max_new_tokens, temperature=0.5, stop=("</answer>",), seed=7)
    return asyncio.run(sampler.generate((1, 2, 3), params)), client, sampler


def said(text: str) -> Output:
    ids = list(TOKENIZER.encode_trusted(text))
    return Output(ids, [-0.25] * len(ids))


def test_a_request_says_what_the_agent_loop_wants() -> None:
    _, client, _ = ask(said("<answer>x</answer>"))
    assert client.asked == {
        "request_id": "uid_1",
        "prompt_ids": [1, 2, 3],
        "max_tokens": 50,
        "temperature": 0.5,
        "top_p": 1.0,
        "top_k": -1,
        "stop": ["</answer>"],
        "stop_token_ids": [TOKENIZER.eos_id],
        "logprobs": True,
        "skip_special_tokens": False,
    }


def test_what_a_server_says_after_the_stop_string_is_dropped() -> None:
    whole = said("<answer>x</answer> and more")
    made, _, sampler = ask(whole)
    assert TOKENIZER.decode(made.ids) == "<answer>x</answer>"
    assert made.stop is GenerationStop.STOP_STRING
    assert len(made.logprobs) == len(made.ids) < len(whole.token_ids)
    assert sampler.versions == [4]


def test_the_end_of_sequence_is_part_of_the_reply() -> None:
    made, _, _ = ask(Output([5, TOKENIZER.eos_id], [-1.0, -2.0]))
    assert (made.ids, made.stop) == ((5, TOKENIZER.eos_id), GenerationStop.EOS)


def test_a_full_length_is_the_token_limit() -> None:
    made, _, _ = ask(Output([5, 6, 7], [-1.0] * 3), max_new_tokens=3)
    assert made.stop is GenerationStop.LENGTH


@pytest.mark.parametrize(
    ("output", "says"),
    [
        (ConnectionError("gone"), "ConnectionError: gone"),
        (Output([], []), "gave up"),
        (Output([5], [-1.0], stop_reason="aborted"), "gave up"),
        (Output([5, 6], [-1.0]), "1 log-probs for 2 tokens"),
        (Output([5], None), "0 log-probs for 1 tokens"),
        (Output([5], [float("nan")]), "not finite"),
    ],
    ids=["raises", "nothing", "aborted", "short", "none", "nan"],
)
def test_what_a_server_gets_wrong_is_a_failure_of_infrastructure(output: Output | Exception, says: str) -> None:
    with pytest.raises(SamplerError, match=says):
        ask(output)


class TaskError(Exception):
    """As Ray's: the other process's traceback is the text, its error the cause."""

    def __init__(self, cause: Exception) -> None:
        super().__init__("Traceback:\n  many\n  lines")
        self.cause = cause


def test_an_error_of_another_process_is_told_in_one_line() -> None:
    with pytest.raises(SamplerError) as found:
        ask(TaskError(ValueError("no room\nleft")))
    assert str(found.value) == "the rollout server failed (ValueError: no room left)"


def test_verls_sampling_parameters_become_ours() -> None:
    assert decoding_of({"temperature": 0, "top_p": 0.9, "top_k": -1, "logprobs": True}).top_k == 0
    assert decoding_of({"temperature": 0.5, "top_p": 1.0, "top_k": 40}).top_k == 40
