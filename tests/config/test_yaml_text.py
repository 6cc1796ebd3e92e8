"""What a configuration file may hold: the core schema of YAML 1.2, and every kind of odd file as one clear line."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mempo.config import resolve
from mempo.config.yaml_text import MAX_DEPTH, dump_flow, dump_yaml, load_value, load_yaml, read_yaml
from mempo.errors import ConfigError

BILLION_LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)

ODD = {
    "a cycle": ("sft: &s {steps: *s}", "line 1: *s is inside &s"),
    "a cycle through a list": ("a: &a\n  - b: [*a]\n", "line 2: *a is inside &a"),
    "an alias of nothing": ("a: *b", "*b names nothing"),
    "10 000 levels of lists": ("a: " + "[" * 10_000, "more than 50 levels"),
    "10 000 levels of mappings": ("a: " + "{a: " * 10_000, "more than 50 levels"),
    "many levels by indentation": ("".join(f"{' ' * n}a:\n" for n in range(400)), "line 51: more than 50 levels"),
    "a billion laughs": (BILLION_LAUGHS, "more than 50000 values"),
    "a number of 5000 digits": ("rl:\n  steps: " + "9" * 5000, "line 2: a number of 5000 digits"),
    "a key twice": ("rl: {steps: 1}\nseed: 1\nrl: {steps: 2}", "line 3: the key 'rl' is given twice"),
    "a key twice inside": ("rl: {steps: 1, steps: 1}", "line 1: the key 'steps' is given twice"),
    "two documents": ("seed: 1\n---\nseed: 2", "line 2: a second document begins"),
    "a list": ("- seed", "holds a list; a configuration is a mapping"),
    "a word": ("seed", "holds a str; a configuration is a mapping"),
    "a list that does not end": ("a: 1\nb: [2", "is not valid YAML: "),
    "a tab": ("rl:\n\tsteps: 1", "found character '\\t'"),
    "a key that is a list": ("? [a, b]\n: 1", "a key is one word, not a list"),
    "a merge key": ("a: &a {b: 1}\nc: {<<: *a}", "<< is of YAML 1.1"),
    "an object": ("a: !!python/object/apply:os.getcwd []", "not valid YAML: line 1 has the tag"),
    "a NUL": ("a: \0", "unacceptable character"),
    "too much text": ("# " + "x" * 2_000_000, "has 2000002 characters"),
}


@pytest.mark.parametrize(("text", "said"), ODD.values(), ids=ODD)
def test_an_odd_document_is_one_clear_line(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_yaml(text, "my.yaml")
    message = str(caught.value)
    assert message.startswith("my.yaml")
    assert said in message
    assert "\n" not in message
    assert len(message) < 400


def test_as_many_levels_as_are_allowed_are_read() -> None:
    inner = "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1)
    assert load_yaml(f"a: {inner}", "x")["a"] is not None
    with pytest.raises(ConfigError, match="levels"):
        load_yaml(f"a: [{inner}]", "x")


@pytest.mark.parametrize("content", [b"\xff\xfes\0e\0e\0d\0", b"seed: \xff", bytes(range(256))])
def test_a_file_that_is_no_text_is_one_clear_line(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(content)
    with pytest.raises(ConfigError, match=r"a\.yaml cannot be read as text|a\.yaml is not valid YAML"):
        read_yaml(tmp_path / "a.yaml")


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"\xef\xbb\xbfseed: 3\n")
    assert resolve(str(tmp_path / "a.yaml")).config.seed == 3


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("1e-5", 1e-5), ("0o17", 15), ("0x1F", 31), ("010", 10), ("-0", 0), ("1_000", 1000), ("+.5", 0.5)),
        *(("on", "on"), ("off", "off"), ("yes", "yes"), ("No", "No"), ("y", "y"), ("1:30", "1:30"), ("tRue", "tRue")),
        *(("TRUE", True), ("False", False), ("Null", None), ("~", None), ("2020-01-01", "2020-01-01"), ("=", "=")),
        *(("1E-6", 1e-6), ("+1e5", 1e5), ("1.5e-6", 1.5e-6), ("1.e3", 1e3), ("-.5e1", -5.0), ("0.0", 0.0), ("-3", -3)),
        *((".inf", math.inf), ("-.inf", -math.inf), ("1e", "1e"), ("e5", "e5"), ("1e-", "1e-"), ("1e5x", "1e5x")),
        *(("a1e5", "a1e5"), ("1-e5", "1-e5"), ("1.2.3", "1.2.3"), (".", "."), ('"1e-6"', "1e-6"), ("'3'", "3")),
    ],
)
def test_words_are_read_by_the_core_schema(text: str, value: object) -> None:
    for found in (load_yaml(f"a: {text}", "x")["a"], load_yaml(f"a: [{text}]", "x")["a"][0], load_value(text)):
        assert type(found) is type(value)
        assert found == value


def test_an_empty_document_is_an_empty_mapping() -> None:
    assert load_yaml("", "x") == load_yaml("# nothing\n", "x") == {}


def test_an_anchor_may_be_named_again() -> None:
    assert load_yaml("a: &a {lr: 1e-5}\nb: *a\nc: [*a, *a]", "x") == {
        "a": {"lr": 1e-5},
        "b": {"lr": 1e-5},
        "c": [{"lr": 1e-5}, {"lr": 1e-5}],
    }


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text().filter(lambda key: key != "<<"), inner),
    max_leaves=12,
)


@given(VALUES)
def test_what_is_written_is_read_back(value: Any) -> None:
    assert load_yaml(dump_yaml({"key": value}), "x") == {"key": value}
    assert load_yaml(f"key: {dump_flow(value)}  # a remark", "x") == {"key": value}


@pytest.mark.parametrize(
    "text", ["1e5", "0o7", "0x1F", "1:30", "yes", "null", "~", "- a", "#", "2020-01-01", " a ", "a: b"]
)
def test_texts_that_look_like_something_else_stay_texts(text: str) -> None:
    assert load_yaml(dump_yaml({"key": text}), "x")["key"] == text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("[1, 2]", [1, 2]), ("{a: 1}", {"a": 1}), ("'5'", "5"), ('"a\\n"', "a\n"), ("", ""), ("  7 ", 7)),
        *(("[{n}] {title}", "[{n}] {title}"), ("{query}: {found}", "{query}: {found}"), ("a: b", "a: b")),
        *(("Item #1", "Item #1"), ("#x", "#x"), ("m:f", "m:f"), ("window(3)", "window(3)"), ("*a", "*a"), ("!x", "!x")),
    ],
)
def test_a_value_of_the_command_line_is_what_it_looks_like(text: str, value: object) -> None:
    assert load_value(text) == value


PIECES = (*"[]{}:,&*!|>'\"#%@`-? \n\t~", "a", "1", "&a", "*a", "<<", "---", "...", "- ", ": ", "\0", "\ud800")


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=30).map("".join))
@settings(max_examples=200)
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    said = ""
    try:
        load_yaml(text, "x")
    except ConfigError as error:
        said = str(error)
    assert len(said.splitlines()) <= 1
