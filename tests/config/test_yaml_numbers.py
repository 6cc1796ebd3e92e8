"""YAML numbers as people write them."""

from __future__ import annotations

import math

import pytest

from mempo.config.yaml_text import load_yaml
from mempo.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("1E-6", 1e-6),
        ("5e-4", 5e-4),
        ("1e5", 1e5),
        ("+1e5", 1e5),
        ("-1e3", -1e3),
        ("1.5e-6", 1.5e-6),
        ("1.e3", 1e3),
        (".5", 0.5),
        ("-.5e1", -5.0),
        ("0.0", 0.0),
        (".inf", math.inf),
        ("-.inf", -math.inf),
    ],
)
def test_floats(text: str, value: float) -> None:
    found = load_yaml(f"lr: {text}", "x")["lr"]
    assert isinstance(found, float)
    assert found == value


@pytest.mark.parametrize(("text", "value"), [("3", 3), ("-3", -3), ("0", 0), ("1_000", 1000)])
def test_ints_stay_ints(text: str, value: int) -> None:
    found = load_yaml(f"n: {text}", "x")["n"]
    assert type(found) is int
    assert found == value


@pytest.mark.parametrize(
    "text", ["e5", "1e", "1e-", "e", "1e5x", "a1e5", "1-e5", '"1e-6"', "'3'", "v1.2", "1.2.3", "."]
)
def test_what_is_no_number_stays_text(text: str) -> None:
    assert load_yaml(f"name: {text}", "x")["name"] == text.strip("'\"")


def test_numbers_inside_lists_and_maps() -> None:
    assert load_yaml("a: [1e-6, {b: 2e3}]", "x") == {"a": [1e-6, {"b": 2e3}]}


def test_the_loader_of_others_is_left_alone() -> None:
    import yaml

    assert yaml.safe_load("lr: 1e-6") == {"lr": "1e-6"}


def test_an_empty_document_is_an_empty_mapping() -> None:
    assert load_yaml("", "x") == load_yaml("# nothing\n", "x") == {}


def test_no_yaml_is_one_line_that_names_the_place() -> None:
    with pytest.raises(ConfigError, match=r"^conf\.yaml is not valid YAML: [^\n]*line 2[^\n]*$"):
        load_yaml("a: 1\nb: [2", "conf.yaml")


@pytest.mark.parametrize(("text", "kind"), [("- 1", "list"), ("just words", "str"), ("3", "int")])
def test_no_mapping_is_refused(text: str, kind: str) -> None:
    with pytest.raises(ConfigError, match=f"conf.yaml holds a {kind}; a configuration is a mapping"):
        load_yaml(text, "conf.yaml")


def test_nothing_is_executed() -> None:
    with pytest.raises(ConfigError, match="not valid YAML"):
        load_yaml("a: !!python/object/apply:os.getcwd []", "conf.yaml")
