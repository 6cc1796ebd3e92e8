"""A file may build on a recipe, or on another file: `recipe: quickstart`."""

from __future__ import annotations

from pathlib import Path

import pytest

from mempo.config import dump_with_origins, resolve
from mempo.errors import ConfigError


def write(path: Path, text: str) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_file_builds_on_a_recipe_and_every_value_says_where_it_came_from(tmp_path: Path) -> None:
    file = write(tmp_path / "mine.yaml", "recipe: quickstart\noutput: runs/mine\nrl: {steps: 3}\n")
    resolved = resolve(file, ["seed=5"])
    expected = resolve("quickstart", ["output=runs/mine", "rl.steps=3", "seed=5"])
    assert resolved.config == expected.config
    assert resolved.origins["rl.steps"] == file
    assert resolved.origins["seed"] == "command line"
    assert resolved.origins["rl.questions_per_step"] == f"recipe quickstart (through {file})"
    again = write(tmp_path / "again.yaml", dump_with_origins(resolved))
    assert resolve(again).config == resolved.config


def test_a_file_builds_on_a_file_beside_it_wherever_the_command_is_called(tmp_path: Path) -> None:
    middle = write(tmp_path / "base" / "middle.yaml", "recipe: maze\nseed: 1\nrl: {steps: 4}\n")
    file = write(tmp_path / "mine.yaml", "recipe: base/middle.yaml\nseed: 2\n")
    resolved = resolve(file)
    assert (resolved.config.seed, resolved.config.rl.steps, resolved.config.data.environment) == (2, 4, "maze")
    here = tmp_path / "base" / "middle.yaml"
    assert resolved.origins["rl.steps"] == f"{here} (through {file})"
    assert resolved.origins["data.environment"] == f"recipe maze (through {here}) (through {file})"
    assert resolve(middle).config.seed == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("recipe: quikstart", "no recipe; did you mean 'quickstart'?"),
        ("recipe: other.yaml", "recipe is 'other.yaml', no recipe"),
        ("recipe: [quickstart]", "no recipe"),
        ("recipe: null", "no recipe"),
        ("recipe: mine.yaml", "builds on itself"),
    ],
)
def test_a_base_that_is_none_is_refused(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(write(tmp_path / "mine.yaml", text))
    assert said in str(caught.value)


def test_files_that_build_on_each_other_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "b.yaml", "recipe: a.yaml")
    with pytest.raises(ConfigError, match="builds on itself"):
        resolve(write(tmp_path / "a.yaml", "recipe: b.yaml"))


def test_on_the_command_line_the_source_is_what_is_built_on() -> None:
    with pytest.raises(ConfigError, match="recipe is the first word of the command"):
        resolve(None, ["recipe=quickstart"])
