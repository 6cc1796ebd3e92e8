"""Addresses with a password in them are refused wherever one is taken, and shown nowhere."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from mempo.cli import main as cli
from mempo.config import resolve
from mempo.config.addresses import masked, server_address
from mempo.config.server import JudgeSettings, ServerSettings
from mempo.config.tools import WebPageSettings, WebSearchSettings
from mempo.errors import UserError
from mempo.retrieval.client import HttpRetriever

WITH_PASSWORD = [
    "http://user:s3cret-word@host:8013",
    "https://s3cret-word@host",
    "http://user:s3cret-word@host/v1/",
    "http://:s3cret-word@host",
    "http://us%65r:s3cret-word@[::1]:8000",
    "HTTP://user:s3cret-word@host",
    " http://user:s3cret-word@host ",
    "//user:s3cret-word@host",
    "user:s3cret-word@host:8013",
    "ftp://user:s3cret-word@host",
    "http://user:s3cret-word@",
    "http://user:s3cret-word@host:notaport",
    "http://host/?api_key=s3cret-word",
    "http://host/search?q=1&access_token=s3cret-word",
]

TAKERS: dict[str, Callable[[str], Any]] = {
    "retriever": HttpRetriever,
    "model server": lambda url: ServerSettings(url=url),
    "judge": lambda url: JudgeSettings.model_validate({"server": {"url": url}}),
    "web search": lambda url: WebSearchSettings(endpoint=url),
    "page service": lambda url: WebPageSettings(endpoint=url),
    "data.server": lambda url: resolve("quickstart", [f"data.server={url}"]),
    "server.url": lambda url: resolve("quickstart", [f"server.url={url}"]),
    "search.web.endpoint": lambda url: resolve("quickstart", [f"search.web.endpoint={url}"]),
    "access.web.endpoint": lambda url: resolve("quickstart", [f"access.web.endpoint={url}"]),
}


@pytest.mark.parametrize("url", WITH_PASSWORD)
@pytest.mark.parametrize("taker", TAKERS)
def test_an_address_with_a_password_is_refused_without_repeating_it(taker: str, url: str) -> None:
    with pytest.raises((UserError, ValidationError), match="user, a password or a key") as caught:
        TAKERS[taker](url)
    assert "s3cret-word" not in f"{caught.value} {caught.value!r}"


COMMANDS = {
    "train": ["train", "quickstart", "--dry-run", "data.server={url}"],
    "config": ["config", "quickstart", "data.server={url}"],
    "eval": ["eval", "--server", "{url}", "--config", "{config}", "--out", "out"],
    "eval without a configuration": ["eval", "--server", "{url}"],
    "search": ["search", "{url}", "a query"],
    "override of another key": ["config", "quickstart", "data.serve={url}"],
    "no override": ["config", "quickstart", "{url}"],
}


@pytest.mark.parametrize("url", WITH_PASSWORD)
@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_line_neither_prints_nor_keeps_a_password(
    command: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("data: {test: none.jsonl}\n", "utf-8")
    arguments = [part.format(url=url, config="mine.yaml") for part in COMMANDS[command]]
    monkeypatch.setattr(sys, "argv", ["mempo", *arguments])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    said = "".join(capsys.readouterr())
    assert caught.value.code == 2, said
    assert "s3cret-word" not in said
    assert "Traceback" not in said
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or "s3cret-word" not in file.read_text("utf-8")


@pytest.mark.parametrize("url", ["http://host", "https://host:1/a@b/", "http://[::1]:8013/retrieve", "http://h/mail@x"])
def test_an_address_without_one_is_taken(url: str) -> None:
    assert server_address(url, "server", "http://h", "KEY") == url.rstrip("/")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("cannot open http://a:b@host/x now", "cannot open http://[redacted]@host/x now"),
        ("'http://a:b/c@host' twice //d@e", "'http://[redacted]@host' twice //[redacted]@e"),
        ("a:b@host:80 is not a folder", "[redacted]@host:80 is not a folder"),
        ("http://h/?api_key=abc&q=1", "http://h/?api_key=[redacted]&q=1"),
        ("model@host, 3:1, mail me@host, http://host/path", "model@host, 3:1, mail me@host, http://host/path"),
    ],
)
def test_a_message_is_masked(text: str, shown: str) -> None:
    assert masked(text) == shown
