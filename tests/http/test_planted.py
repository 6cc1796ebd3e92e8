"""A secret planted in every client, and servers that echo whatever they were sent: it stands in nothing that stays."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from mempo.http.secrets import HIDDEN
from mempo.retrieval.client import HttpRetriever, token_from_environment
from mempo.rollout.agent import DecodingSettings, Job, rollout
from mempo.storage.rollouts import save_rollouts
from mempo.tools.search import SearchSettings, SearchTool
from tests.http.clients import CLIENTS, KEYS, ONCE
from tests.tiny import Scripted, make_agent, make_tokenizer
from tests.train.fakes import questions

SECRET = "pl4nted/s3cret+0123456789"

Write = Callable[[str], str]
WAYS: dict[str, Write] = {
    "plain": lambda text: text,
    "percent": lambda text: quote(text, safe=""),
    "basic": lambda text: base64.b64encode(f"user:{text}".encode()).decode(),
}


def traces(secret: str) -> list[str]:
    """Whatever would give it away."""
    whole = [write(secret) for write in WAYS.values()]
    return [secret, secret[4:-4], json.dumps(secret)[1:-1].replace("/", "\\/"), *whole]


@contextmanager
def echoing(status: int, write: Write, escape_slashes: bool = False) -> Iterator[str]:
    """Answers every protocol at once, with all headers it got wherever a text may stand."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = sorted(self.headers.items(), key=lambda header: SECRET not in header[1])
            sent = " ".join(f"{name}: {value.replace(SECRET, write(SECRET))}" for name, value in headers)
            row = {"id": "1", "contents": f"{sent}\\n{sent}", "url": sent}
            choice = {"text": sent, "message": {"content": sent}, "finish_reason": "stop"}
            choice["token_ids"] = []
            reply: dict[str, Any] = {"choices": [choice], "organic": [{"title": sent, "link": sent, "snippet": sent}]}
            count = len(json.loads(body).get("urls", [0])) if body[:1] == b"{" else 1
            reply["result"] = [row] if self.path == "/access" else [[row]] * count
            reply["data"] = [{"id": sent}]
            content = json.dumps(reply)
            content = content.replace("/", "\\\\/") if escape_slashes else content
            packed = sent if self.command == "GET" and self.path.startswith("/read/") else content
            self.send_response(status, sent[:50].encode("ascii", "replace").decode())
            self.send_header("content-length", str(len(packed.encode())))
            self.send_header("x-echo", sent)
            self.end_headers()
            self.wfile.write(packed.encode())

        do_GET = do_POST = answer

        def log_message(self, format: str, *args: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_port}"
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


@pytest.fixture(autouse=True)
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in KEYS:
        monkeypatch.setenv(name, SECRET)


def assert_clean(text: str) -> None:
    for trace in traces(SECRET):
        assert trace not in text


@pytest.mark.parametrize("status", [200, 302, 400, 401, 422, 500, 503])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("client", [name for name in CLIENTS if name != "web_page"])
def test_no_client_lets_its_secret_come_back(
    client: str, way: str, status: int, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    with echoing(status, WAYS[way]) as url:
        try:
            found = CLIENTS[client](url, 5.0)().text
        except Exception as error:  # a refused key ends a run with an error
            found = f"{error!r} {error} {error.__cause__!r}"
    assert_clean(found)
    assert_clean(caplog.text + "".join(capfd.readouterr()))
    if status == 200:
        assert HIDDEN in found, "the server did echo it"


def test_escapes_of_json_hide_nothing() -> None:
    with echoing(200, WAYS["plain"], escape_slashes=True) as url:
        found = CLIENTS["search"](url, 5.0)().text
    assert_clean(found)
    assert HIDDEN in found


@pytest.mark.parametrize("status", [200, 500])
def test_neither_prompts_nor_rollouts_hold_a_token_that_a_server_echoes(status: int, tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    with echoing(status, WAYS["plain"]) as url:
        retriever = HttpRetriever(url, 5.0, tries=1, token=token_from_environment())
        agent = make_agent(tokenizer, tools={"search": SearchTool(retriever, SearchSettings(retry=ONCE))})
        turns = ["<think>s</think><search>q</search>", "<mem>n</mem><answer>Paris</answer>"]
        sampler = Scripted(tokenizer, turns)
        done = asyncio.run(rollout(agent, sampler, Job(questions(1)[0], 0, (0,)), DecodingSettings()))
    seen = "".join(tokenizer.decode(turn.prompt_ids) for turn in done.turns)
    assert_clean(seen)
    assert HIDDEN in seen
    assert_clean(repr(done))
    save_rollouts(tmp_path / "step-1.jsonl", [done], [{}])
    for file in tmp_path.rglob("*"):
        assert_clean(file.read_bytes().decode("latin-1"))
