"""The user's own objects by import path."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mempo.config.base import is_import_path
from mempo.errors import ConfigError
from mempo.rollout.plugins import load_object

MODULE = """
CONSTANT = 3

def score(question, trajectory):
    return 1.0

def keyword_only(question, *, trajectory):
    return 1.0

def anything(*args):
    return 1.0

class Tool:
    def __init__(self, config=None):
        pass
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "my_own_things.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    yield "my_own_things"
    sys.modules.pop("my_own_things", None)


def test_an_import_path_has_a_colon() -> None:
    assert is_import_path("a.b:c")
    assert not is_import_path("memory")


def test_a_module_of_the_current_folder_is_found(module: str) -> None:
    assert load_object(f"{module}:score", "reward", 2)(None, None) == 1.0
    assert load_object(f"{module}:anything", "reward", 2)() == 1.0
    assert isinstance(load_object(f"{module}:Tool", "agent.tools", 0), type)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("score", "reward: 'score' is not an import path; write package.module:name"),
        ("my_own_things:", "is not an import path"),
        (":score", "is not an import path"),
        ("no_such_module:score", "reward: module 'no_such_module' cannot be imported"),
        ("my_own_things:scor", "reward: my_own_things has no 'scor'; did you mean 'score'"),
        ("my_own_things:CONSTANT", "reward: my_own_things:CONSTANT is a int, which cannot be called"),
        ("my_own_things:keyword_only", "cannot be called with 2 arguments"),
    ],
)
def test_what_cannot_be_used_is_one_line_that_names_the_key(module: str, path: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_object(path, "reward", 2)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_the_signature_is_shown(module: str) -> None:
    with pytest.raises(ConfigError, match=r"score\(question, trajectory\) cannot be called with 3 arguments"):
        load_object(f"{module}:score", "reward", 3)
