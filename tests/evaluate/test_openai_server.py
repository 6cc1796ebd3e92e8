"""Opening a server: its model, its tokenizer, what it can do."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mempo.config.rollout import PromptSettings
from mempo.config.server import ServerSettings
from mempo.config.tools import RetrySettings
from mempo.engine.server.capabilities import became_of_stop, capability_notes, probe_stop
from mempo.engine.server.connect import OpenedServer, byte_tokenizer, open_server
from mempo.errors import UserError
from mempo.rollout.tokenizer import Tokenizer
from tests.evaluate.openai_stub import FAMILIES, VLLM, Family, Stub, reply, stub_server
from tests.tiny import make_tokenizer

TOKENIZER = make_tokenizer()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tokenizer")
    TOKENIZER.hf.save_pretrained(folder)
    return str(folder)


def settings(stub: Stub, tokenizer: str | None, **changes: Any) -> ServerSettings:
    retry = RetrySettings(tries=2, backoff_s=0.001)
    return ServerSettings(**{"url": stub.url, "tokenizer": tokenizer, "retry": retry, **changes})


def opened_by(
    stub: Stub, tokenizer: str | None, prompt: PromptSettings | None = None, **changes: Any
) -> tuple[OpenedServer, str]:
    """What was opened, closed again, and what was printed."""
    screen = io.StringIO()
    with stub_server(stub):
        opened = open_server(settings(stub, tokenizer, **changes), Console(file=screen, width=1000), prompt)
        opened.sampler.close()
    return opened, screen.getvalue()


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("llama", {"token_prompts": True, "stop_string": "removed", "logprobs": "chat", "returns_ids": True}),
        ("transformers", {"token_prompts": False, "stop_string": "kept", "logprobs": "none", "returns_ids": False}),
        (
            "vllm",
            {
                "token_prompts": True,
                "stop_string": "removed",
                "stop_field": "stop_reason",
                "keeps_stop_if_asked": True,
                "logprobs": "legacy",
                "returns_ids": True,
            },
        ),
        ("sglang", {"stop_field": "matched_stop", "keeps_stop_if_asked": False, "logprobs": "none"}),
        ("chat", {"api": "chat", "can_force": False, "length_field": "max_tokens", "takes_temperature": True}),
        ("newer_chat", {"api": "chat", "length_field": "max_completion_tokens", "takes_temperature": False}),
    ],
)
def test_every_family_is_found_out(name: str, found: dict[str, Any], tokenizer: str) -> None:
    opened, said = opened_by(Stub(TOKENIZER, FAMILIES[name]), tokenizer)
    record = opened.capabilities.as_record()
    assert {key: record[key] for key in found} == found
    assert (record["model"], record["window_tokens"]) == ("the-model", 512)
    assert said.startswith(opened.capabilities.line())
    assert set(opened.sampler.counts().values()) == {0}, "the probe's own requests are not the rollouts'"


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("matter", [True, False])
def test_whether_samples_differ_with_the_seed_is_found_out(name: str, matter: bool, tokenizer: str) -> None:
    stub = Stub(TOKENIZER, FAMILIES[name], seeds_matter=matter)
    can, asked = opened_by(stub, tokenizer)[0].capabilities, stub.bodies[-3:]
    assert can.seeds_differ is matter
    assert ("samples do not differ with the seed" in can.line()) is not matter
    assert len(capability_notes(can.as_record())) == (0 if matter else 1)
    if "seed" in can.accepts:
        assert len({body["seed"] for body in asked}) == 3
    assert {body.get("temperature", 1.0) for body in asked} == {1.0}


def test_a_model_that_only_thinks_says_nothing_about_seeds(tokenizer: str) -> None:
    silent = {"message": {"content": None, "reasoning_content": "hm"}, "finish_reason": "length"}
    stub = Stub(TOKENIZER, FAMILIES["chat"], fault=lambda number: reply({"choices": [silent]}))
    can = opened_by(stub, tokenizer, api="chat")[0].capabilities
    assert can.seeds_differ is None
    assert capability_notes(can.as_record()) == []
    assert capability_notes({"model": "of an older folder"}) == []


def test_what_is_refused_is_found_one_by_one(tokenizer: str) -> None:
    opened, _ = opened_by(Stub(TOKENIZER, FAMILIES["transformers"]), tokenizer)
    assert opened.capabilities.accepts == {"seed", "logprobs", "top_p"}


def test_a_tokenizer_that_is_not_the_models_sends_no_ids(tokenizer: str) -> None:
    other = make_tokenizer(tags="added")
    other.hf.backend_tokenizer.add_tokens(["count"])
    opened, said = opened_by(Stub(Tokenizer(other.hf), VLLM), tokenizer)
    can = opened.capabilities
    assert (can.tokenizer_agrees, can.token_prompts, can.returns_ids, can.logprobs) == (False, False, False, "none")
    assert "prompts go as text" in said


def test_a_server_that_counts_nothing_must_say_the_same_to_ids(tokenizer: str) -> None:
    opened, _ = opened_by(Stub(TOKENIZER, Family(counts=False)), tokenizer)
    assert (opened.capabilities.tokenizer_agrees, opened.capabilities.token_prompts) == (None, True)


def test_bytes_stand_in_for_an_unknown_tokenizer() -> None:
    opened, _ = opened_by(Stub(TOKENIZER, VLLM), "bytes", PromptSettings(force_mem=True, system="S"))
    can = opened.capabilities
    assert (can.token_prompts, can.returns_ids, can.logprobs) == (False, False, "none")
    assert opened.prompt == PromptSettings(force_mem=True, system="S", template="plain")
    text = "Zürich 東京 \x00\n<mem>"
    assert len(opened.tokenizer.encode_untrusted(text)) == len(text.encode())
    assert opened.tokenizer.decode(opened.tokenizer.encode_untrusted(text)) == text


def test_a_chat_server_changes_the_prompt_and_says_so(tokenizer: str) -> None:
    wanted = PromptSettings(template="auto", force_mem=True, question="Q: {question}")
    opened, said = opened_by(Stub(TOKENIZER, FAMILIES["chat"]), tokenizer, wanted)
    assert opened.prompt == PromptSettings(template="plain", force_mem=False, question="Q: {question}")
    assert "prompt.force_mem is off" in said


@pytest.mark.parametrize(
    ("change", "server", "says"),
    [
        ({}, {"models": ("a", "b")}, r"lists 2 models \(a, b\); choose one with server\.model"),
        ({}, {"models": ()}, "lists no model"),
        ({"api": "completions"}, {"family": FAMILIES["chat"]}, "/v1/completions: HTTP 404"),
        ({}, {"key": "sk-1234"}, "HTTP 401.*environment variable OPENAI_API_KEY"),
        ({"model": "m"}, {"key": "sk-1234"}, "HTTP 401.*environment variable OPENAI_API_KEY"),
        ({}, {"fault": lambda number: reply({"error": "no memory"}, 500)}, "HTTP 500.*no memory"),
        ({}, {"fault": lambda number: reply({"choices": []})}, "0 choices.*;.*0 choices"),
        ({"tokenizer": None}, {}, r"server\.tokenizer is not set: .*bytes"),
        ({"tokenizer": None, "model": "./no/model"}, {}, r"server\.tokenizer is not set, and './no/model' cannot be"),
        ({"tokenizer": "./none"}, {}, r"server\.tokenizer './none' cannot be loaded as a tokenizer"),
    ],
    ids=["many", "none", "api", "key", "key_model", "down", "schema", "no_tokenizer", "no_model_folder", "missing"],
)
def test_what_cannot_work_is_one_clear_error(
    change: dict[str, Any], server: dict[str, Any], says: str, tokenizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with stub_server(Stub(TOKENIZER, **server)) as stub, pytest.raises(UserError, match=says):
        open_server(settings(stub, **{"tokenizer": tokenizer, **change}))


def test_a_tokenizer_alone_is_enough(tokenizer: str) -> None:
    assert not list(Path(tokenizer).glob("*.safetensors"))
    opened, _ = opened_by(Stub(TOKENIZER), tokenizer)
    assert opened.tokenizer.encode_trusted("hello") == TOKENIZER.encode_trusted("hello")


def test_the_bytes_of_a_reply_are_never_special() -> None:
    tokenizer = byte_tokenizer()
    said = tokenizer.decode([tokenizer.eos_id])
    assert tokenizer.eos_id not in tokenizer.encode_untrusted(f"a {said} b")


@pytest.mark.parametrize(
    ("text", "stop"),
    [(" 9, 10, 11, 12", "11,"), ("one two", "two"), ("word", None), ("", None), ("a a a", None)],
)
def test_a_stop_string_that_will_come(text: str, stop: str | None) -> None:
    assert probe_stop(text) == stop


@pytest.mark.parametrize(
    ("reply_text", "became"),
    [
        (" 9, 10, 11", "kept"),
        (" 9, 10, 11, ", "kept"),
        (" 9, 10, ", "removed"),
        (" 9, 10,", "removed"),
        ("x", "unknown"),
    ],
)
def test_what_became_of_it(reply_text: str, became: str) -> None:
    assert became_of_stop(reply_text, " 9, 10, 11, 12", "11") == became
