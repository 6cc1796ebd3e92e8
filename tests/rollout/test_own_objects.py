"""A dry run loads what import paths name."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mempo.config import resolve
from mempo.errors import ConfigError
from mempo.run.own_objects import load_own_objects, own_objects

MODULE = """
def score(question, trajectory): ...
def advantages(scores, notes): ...
def context(renderer): ...
def tool(): ...
def environment(**options): ...
def provider(): ...
"""
SETTINGS = {
    "reward": "reward={}:score",
    "advantages": "advantages={}:advantages",
    "agent.context": "agent.context={}:context",
    "agent.tools": "agent.tools=['{}:tool']",
    "data.environment": "data.environment={}:environment",
}


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "objects_of_mine.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield "objects_of_mine"
    sys.modules.pop("objects_of_mine", None)


def test_nothing_is_loaded_where_nothing_is_named() -> None:
    assert list(own_objects(resolve("quickstart").config)) == []


def test_every_kind_of_object_is_found(module: str) -> None:
    overrides = [setting.format(module) for setting in SETTINGS.values()]
    overrides += [f"evaluate.agents=[memory, '{module}:context']"]
    config = resolve("quickstart", overrides).config
    assert {key: path.partition(":")[2] for key, path in own_objects(config)} == {
        "reward": "score",
        "advantages": "advantages",
        "agent.context": "context",
        "agent.tools": "tool",
        "data.environment": "environment",
    }
    load_own_objects(config)


@pytest.mark.parametrize("key", SETTINGS)
@pytest.mark.parametrize("name", ["nowhere", "objects_of_mine"])
def test_what_is_not_there_is_said_before_anything_runs(key: str, name: str, module: str) -> None:
    setting = SETTINGS[key].format(name)
    if name == module:
        setting = setting.replace(":", ":un")
    said = "cannot be imported" if name != module else "has no 'un"
    with pytest.raises(ConfigError, match=rf"{key}: .*{said}"):
        load_own_objects(resolve("quickstart", [setting]).config)


def test_a_signature_that_does_not_fit_is_said(module: str) -> None:
    with pytest.raises(ConfigError, match="cannot be called with 2 arguments"):
        load_own_objects(resolve("quickstart", [f"reward={module}:context"]).config)


def test_a_provider_counts_where_the_web_is_searched(module: str) -> None:
    web = [f"search.web.provider={module}:gone"]
    load_own_objects(resolve("quickstart", web).config)
    with pytest.raises(ConfigError, match=r"search\.web\.provider: .*has no 'gone'"):
        load_own_objects(resolve("quickstart", [*web, "search.source=web"]).config)
