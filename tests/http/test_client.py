"""Retries, time-outs, limits and error texts, against a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from starlette.responses import Response

from mempo.config.server import ServerSettings
from mempo.config.tools import RetrySettings
from mempo.engine.server.client import OpenAIClient
from mempo.errors import UserError
from mempo.http.errors import HttpError
from mempo.http.retry import pause_s, retry_after_s
from mempo.http.secrets import HIDDEN
from tests.evaluate.openai_stub import Stub, broken_off, raw, reply, stub_server
from tests.tiny import make_tokenizer

TOKENIZER = make_tokenizer()
BODY = {"model": "m", "prompt": "hello", "max_tokens": 3}
KEY = "sk-secret/0123456789"


def settings(url: str, **changes: Any) -> ServerSettings:
    quick = RetrySettings(tries=3, backoff_s=0.001, max_backoff_s=0.01)
    return ServerSettings(**{"url": url, "retry": quick, "timeout_s": 20.0, **changes})


@pytest.fixture
def stub() -> Iterator[Stub]:
    with stub_server(Stub(TOKENIZER, say=lambda prompt: "hi<eos>")) as stub:
        yield stub


def text_of(body: dict[str, Any]) -> str:
    try:
        return body["choices"][0]["text"]
    except (KeyError, IndexError) as error:
        raise ValueError("no text") from error


def ask(stub: Stub, **changes: Any) -> str:
    with OpenAIClient(settings(stub.url, **changes)) as client:
        return client.post_now("/completions", BODY, text_of)


@pytest.mark.parametrize(
    "fault",
    [
        lambda: reply({"error": "busy"}, 429, **{"retry-after": "1"}),
        lambda: reply({"error": "oops"}, 500),
        lambda: reply({"error": "loading"}, 503),
        lambda: raw(b"<html>starting</html>"),
        lambda: raw(b'{"choices": [{"te'),
        lambda: raw(b'{"choices": [{"text": "\xff"}]}'),
        broken_off,
    ],
    ids=["429", "500", "503", "html", "truncated", "utf8", "dropped"],
)
def test_what_may_mend_itself_is_asked_again(stub: Stub, fault: Callable[[], Response]) -> None:
    stub.fault = lambda number: fault() if number < 2 else None
    with OpenAIClient(settings(stub.url)) as client:
        assert client.post_now("/completions", BODY, text_of) == "hi"
        assert client.counts == {"requests": 3, "retries": 2}


@pytest.mark.parametrize(
    ("fault", "kind", "says", "requests"),
    [
        (lambda: reply({"error": "too long"}, 400), "status", r"HTTP 400.*status 400.*too long", 1),
        (lambda: reply({"choices": []}), "schema", r"no text.*status 200.*choices", 1),
        (lambda: reply([1]), "schema", "not a JSON object", 1),
        (lambda: raw(b"x" * 500), "not_json", r"not JSON \(try 3\).*x{200}\]$", 3),
        (lambda: raw(b""), "not_json", "empty body", 3),
        (lambda: reply({"e": 1}, 502), "status", r"HTTP 502 \(try 3\)", 3),
        (broken_off, "refused", r"broke off.*\(try 3\)", 3),
        (lambda: reply({}, 302, location="http://elsewhere"), "status", "HTTP 302", 1),
    ],
    ids=["400", "empty", "list", "text", "nothing", "502", "dropped", "redirect"],
)
def test_a_failure_for_good_says_what_and_where(
    stub: Stub, fault: Callable[[], Response], kind: str, says: str, requests: int
) -> None:
    stub.fault = lambda number: fault()
    with pytest.raises(HttpError, match=f"model server {stub.url}/v1/completions: .*{says}") as caught:
        ask(stub)
    assert (caught.value.kind, len(stub.bodies)) == (kind, requests)


def test_a_reply_that_never_ends_is_broken_off(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mempo.engine.server.client.MAX_REPLY_BYTES", 1000)
    stub.fault = lambda number: raw(b"[" + b"1," * 100_000)
    with pytest.raises(HttpError, match="longer than 1000 bytes"):
        ask(stub)
    assert len(stub.bodies) == 1


def test_the_key_goes_into_the_header_and_into_no_message(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTHER_KEY", KEY)
    stub.key = KEY
    assert ask(stub, key_variable="OTHER_KEY") == "hi"
    stub.key = "another"
    with pytest.raises(HttpError, match="401") as caught:
        ask(stub, key_variable="OTHER_KEY")
    assert KEY not in str(caught.value)
    assert HIDDEN in str(caught.value)
    assert caught.value.is_denied
    assert len(stub.bodies) == 2, "a refused key is not tried again"
    assert KEY not in repr(settings(stub.url, key_variable="OTHER_KEY").model_dump())


def test_a_key_that_no_header_can_hold(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "schlüssel")
    with pytest.raises(UserError, match="OPENAI_API_KEY"):
        ask(stub)


def test_no_more_requests_at_once_than_allowed(stub: Stub) -> None:
    stub.delay_s = 0.01

    async def many(client: OpenAIClient) -> list[str]:
        return list(await asyncio.gather(*(client.post("/completions", BODY, text_of) for _ in range(20))))

    with OpenAIClient(settings(stub.url, max_concurrent=4)) as client:
        assert asyncio.run(many(client)) == ["hi"] * 20
        assert stub.most_under_way == 4
        assert asyncio.run(many(client)) == ["hi"] * 20, "another event loop may ask the same client"


def test_extra_fields_go_with_every_request(stub: Stub) -> None:
    ask(stub, extra={"priority": 3})
    assert stub.bodies == [{**BODY, "priority": 3}]


def test_a_client_that_was_closed_says_so(stub: Stub) -> None:
    client = OpenAIClient(settings(stub.url))
    client.close()
    client.close()
    with pytest.raises(RuntimeError, match="is closed"):
        client.post_now("/completions", BODY, text_of)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("", None),
        ("3", 3.0),
        ("0.5", 0.5),
        ("-1", None),
        ("soon", None),
        ("Sun, 29 Nov 2026 12:00:10 GMT", 10.0),
        ("Sun, 29 Nov 2026 11:00:00 GMT", 0.0),
        ("Mon, 01 Jan 99999999999999999999 00:00:00 GMT", None),
        ("Mon, 01 Jan 2035 00:00:00 +9999999999999", None),
    ],
)
def test_both_forms_of_retry_after(header: str | None, seconds: float | None) -> None:
    assert retry_after_s(header, datetime(2026, 11, 29, 12, 0, 0, tzinfo=UTC)) == seconds


def test_the_wait_between_tries() -> None:
    retry = RetrySettings(max_backoff_s=60.0)
    drawn = [pause_s(8.0, 0.0, retry) for _ in range(200)]
    assert min(drawn) >= 4.0
    assert max(drawn) <= 8.0
    assert len(set(drawn)) > 100, "clients that failed together do not come back together"
    assert pause_s(8.0, 30.0, retry) == 30.0, "a server may ask for more"
    assert pause_s(8.0, 900.0, retry) == 60.0, "but not for everything"
    assert pause_s(512.0, 0.0, retry) == 60.0
