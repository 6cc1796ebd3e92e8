"""Where a list, a mapping or a group of settings is wanted, the error says what to write."""

from __future__ import annotations

import pytest

from mempo.config import resolve
from mempo.errors import ConfigError, counted


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("agent.tools=search", "agent.tools: is a list; write agent.tools=[search] (given: 'search')"),
        ("agent.tools=search,access", "write agent.tools=[search, access]"),
        ("agent.tools=null", "write agent.tools=[first, second]"),
        ("evaluate.agents=3", "write evaluate.agents=[3]"),
        ("data.where=hard", "data.where: is a mapping; write data.where={name: value}, or data.where={} for none"),
        ("data.where=[hard]", "write data.where={name: value}"),
        ("limits=3", "limits: is a group of settings; write limits.NAME=value, or limits={NAME: value}"),
        ("model.lora=4", "write model.lora.NAME=value"),
    ],
)
def test_the_shape_is_said(setting: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve("quickstart", [setting])
    assert says in str(caught.value)
    assert "valid tuple" not in str(caught.value)
    assert "valid dictionary" not in str(caught.value)


@pytest.mark.parametrize(
    "setting", ["agent.tools=[search]", "data.where={}", "limits={max_turns: 4}", "evaluate.agents=[memory, react]"]
)
def test_what_the_errors_say_is_accepted(setting: str) -> None:
    resolve("quickstart", [setting])


def test_one_is_no_plural() -> None:
    assert [counted(n, "objective") for n in (0, 1, 2)] == ["0 objectives", "1 objective", "2 objectives"]
