"""Environments by name and by import path: options are checked, and what is returned is looked at."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mempo.config import resolve
from mempo.envs.atlas import TOY, AtlasEnvironment
from mempo.envs.registry import make_environment
from mempo.errors import UserError
from mempo.rollout.interfaces import Environment
from mempo.setup import load_data

MODULE = """
from mempo.rollout.question import Question
from mempo.retrieval.document import Document

class Small:
    name = "small"
    def __init__(self, most=3):
        self.most = most
    def documents(self):
        return [Document("0", "A", "a", None)]
    def questions(self, split, count, objectives, seed):
        most = self.most if split == "train" else 0
        return [Question(f"{objectives}-{i}", "?", "a") for i in range(min(count, most * objectives))]

def number():
    return 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "my_small_environment.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield "my_small_environment"
    sys.modules.pop("my_small_environment", None)


def test_the_atlas_takes_what_yaml_has() -> None:
    assert make_environment("atlas", {"subset": "toy"}) == AtlasEnvironment(subset=TOY)
    assert make_environment("atlas", {"forms": ["one_hop"]}) == make_environment("atlas", {"forms": "one_hop"})
    environment = make_environment("atlas", {"subset": {"kinds": ["country"], "max_entities": 5}, "rendering": "cards"})
    assert isinstance(environment, Environment)
    assert len(environment.documents()) < 60


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sbset": "toy"}, "no option 'sbset'; did you mean 'subset'?"),
        ({"subset": "some"}, "everything, toy, or a mapping"),
        ({"subset": ["toy"]}, "everything, toy, or a mapping"),
        ({"subset": {"max_wrds": 1}}, "did you mean 'max_words'?"),
        ({"subset": {"max_entities": "ten"}}, "a value of the wrong kind"),
        ({"subset": {"kinds": ["contry"]}}, "did you mean 'country'?"),
        ({"rendering": "crds"}, "choose prose or cards"),
        ({"test_fraction": "x"}, "a number between 0 and 1"),
    ],
)
def test_options_that_cannot_be_are_one_line(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        make_environment("atlas", options)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_environment_names_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean 'atlas'"):
        make_environment("atlass", {})


def test_an_own_environment_is_made_with_its_options(module: str) -> None:
    environment = make_environment(f"{module}:Small", {"most": 2})
    assert len(environment.questions("train", 9, 1, 0)) == 2
    for path, options, said in (
        (f"{module}:Small", {"mots": 2}, "do not fit"),
        (f"{module}:number", {}, "returned a int, which is not an Environment"),
    ):
        with pytest.raises(UserError, match=said):
            make_environment(path, options)


def drawn(module: str, tmp_path: Path, **options: int) -> list[str]:
    settings = [f"data.environment={module}:Small", f"data.environment_options={options}", "data.train_questions=10"]
    config = resolve(None, [*settings, "data.objectives=[1, 2]"]).config
    data = load_data(config, tmp_path / "work")
    assert data.test == []
    return [question.id for question in data.train]


def test_an_environment_may_have_fewer_questions_than_asked_for(module: str, tmp_path: Path) -> None:
    assert drawn(module, tmp_path, most=1) == ["1-0", "2-0", "2-1"]
    assert drawn(module, tmp_path, most=9) == [f"{k}-{i}" for i in range(5) for k in (1, 2)]


def test_an_environment_without_training_questions_is_refused(module: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="environment small has no train questions with 1, 2 objectives"):
        drawn(module, tmp_path, most=0)
