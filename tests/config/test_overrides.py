"""`key=value` for every command, and what is said of values that cannot be."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mempo.config import Config, resolve
from mempo.config.describe import described
from mempo.config.overrides import parse_override, settings_from, source_and_overrides
from mempo.config.retrieval import BuildSettings, ServiceSettings
from mempo.errors import ConfigError


def refusal(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve("quickstart", overrides)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 400
    return message


def refused_source(source: str) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve(source)
    return str(caught.value)


def test_an_override_is_a_nested_mapping() -> None:
    assert parse_override("rl.optim.lr=1e-5") == {"rl": {"optim": {"lr": 1e-5}}}
    assert parse_override(" seed = 3 ") == {"seed": 3}
    assert parse_override("data.where={a: b=c}") == {"data": {"where": {"a": "b=c"}}}


@pytest.mark.parametrize(
    "text", ["rl.steps", "=3", "rl..steps=1", ".rl=1", "rl.=1", "a." * 10_000 + "b=1", "a" * 10_000]
)
def test_what_is_no_override_says_how_one_is_written(text: str) -> None:
    assert "is not an override; write key=value, for example rl.steps=20" in refusal(text)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("rl.steps=true", "rl.steps: true is not a number"),
        ("rl.optim.lr=false", "rl.optim.lr: false is not a number"),
        ("access.web.ports=[true]", "access.web.ports: true is not a number"),
        ("limits.max_note_tokens=true", "true is not a number"),
        ("rl.steps=1:30", "rl.steps: Input should be a valid integer"),
        ("rl.steps=1.5", "rl.steps: Input should be a valid integer"),
        ("rl.steps=" + "9" * 30, "the number has 30 digits"),
        ("rl.steps=" + "9" * 5000, "rl.steps: a number of 5000 digits"),
        ("rl.optim.lr=1e999", "finite number"),
        ("rl.memory_signal=on", "rl.memory_signal: write true or false"),
        ("rl.memory_signal=yes", "write true or false"),
        ("rl.memory_signal=2", "rl.memory_signal: Input should be a valid boolean"),
        ("agent.tools=[search, access, search]", "agent.tools: 'search' is given twice"),
        ("evaluate.agents=memory,memory", "evaluate.agents: 'memory' is given twice"),
        ("data.objectives=[2, 3, 2]", "data.objectives: 2 is given twice"),
        ("agent.tools=search", "this is a list; write agent.tools=[search, access]"),
        ("access.web.ports=80", "this is a list; write access.web.ports=[80, 443]"),
        ("data.objectives=two", "write data.objectives=[2, 4]"),
        ("data.test_objectives=0", "write data.test_objectives=[2, 4]"),
        ("data.where=hard", "this is a mapping; write data.where={name: value}"),
        ("data.environment_options=prose", "this is a mapping; write data.environment_options={name: value}"),
        ("search=web", "this is a group of settings; write search.source=corpus, or {source: corpus}"),
        ("rl=5", "this is a group of settings; write rl.steps=0, or {steps: 0}"),
        ("model.lora=16", "this is a group of settings; write model.lora.rank=16"),
        ("output=7", "this is a text; write output='\"7\"'"),
        ("memory.baseline=ful", "did you mean 'full'?"),
        ("sampler.engine=vlm", "did you mean 'vllm'?"),
        ('output="runs/\\0"', "holds NUL"),
        ("output=runs/\udcff", "not Unicode text"),
        ("data.where={a: ['\udcff']}", "not Unicode text"),
        ("rll=1", "unknown key 'rll'; did you mean 'rl'? [command line]"),
        ("model={path: x, 3: y}", "unknown key 3"),
        ("agent.tools=" + "[" * 5000, "this is a list; write agent.tools=[search, access]"),
    ],
)
def test_a_value_that_cannot_be_is_told_with_a_remedy(override: str, said: str) -> None:
    assert said in refusal(override)


def test_a_dotted_key_in_a_file_is_told() -> None:
    assert "write dotted keys as nested ones" in refusal("model={lora.rank: 3}")


def test_other_classes_are_read_by_the_same_parser() -> None:
    found = settings_from(BuildSettings, ["kind=dense", "encoder=minilm", "encoder.batch=8", "dense.factory=IVF64,PQ8"])
    assert found.encoder is not None
    assert (found.kind, found.encoder.path, found.encoder.batch) == ("dense", "minilm", 8)
    assert found.dense.factory == "IVF64,PQ8"
    with pytest.raises(ConfigError, match=r"max_queries: true is not a number"):
        settings_from(ServiceSettings, ["max_queries=true"])
    assert settings_from(ServiceSettings, ["max_top_k=7"], {"max_top_k": 9, "default_top_k": 2}).max_top_k == 7


def test_where_no_source_is_named_the_first_setting_stands_in_its_place() -> None:
    assert source_and_overrides("rl.steps=3", ["seed=1"]) == (None, ["rl.steps=3", "seed=1"])
    assert source_and_overrides("quickstart", None) == ("quickstart", [])
    assert source_and_overrides(None, None) == (None, [])
    long = "prompt.question=" + "Answer. " * 100 + "{question}"  # longer than a file's name can be
    assert source_and_overrides(long, None) == (None, [long])
    assert "no recipe or file 'xxx" in refused_source("x" * 5000)


KEYS = [one.key for one in described(Config)]
ODD_VALUES = (
    *("[", "{", "'", '"', "[]", "{}", "null", "~", "true", "on", "-1", "1e400", "-0.0", ".nan", "0x", "9" * 40, "a:b"),
    *(
        "[[]]",
        "[null]",
        "[{}]",
        "{a: [1]}",
        "{1: 2}",
        "{null: 1}",
        "[1, true]",
        "1:30",
        "\0",
        "\ud800",
        "é",
        "{a.b: 1}",
    ),
)


def refusal_or_nothing(override: str) -> str:
    """What is said of an override; any error but a ConfigError is a failure of the test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some settings are discouraged
        try:
            resolve(None, [override])
        except ConfigError as error:
            return str(error)
    return ""


@given(st.sampled_from(KEYS), st.sampled_from(ODD_VALUES) | st.text(max_size=12))
@settings(max_examples=200)
def test_any_value_of_any_setting_is_taken_or_refused_in_one_line(key: str, value: str) -> None:
    said = refusal_or_nothing(f"{key}={value}")
    assert len(said.splitlines()) <= 1
    assert len(said) < 1000
