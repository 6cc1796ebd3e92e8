"""Old tool results shown short: what later turns see, what is trained on, what is saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mempo.config import resolve
from mempo.config.rollout import PromptSettings
from mempo.errors import ConfigError
from mempo.rollout.interfaces import ToolResult
from mempo.rollout.render import Renderer
from mempo.rollout.trajectory import Trajectory, rows_of
from mempo.storage.rollouts import load_rollouts, save_rollouts
from tests.rollout.test_agent import TOKENIZER, play
from tests.tiny import make_agent

LONG, SHORT = "the capital of France is Paris and lies on the Seine", "the capital"
TURN = "<mem>n</mem><think>s</think><search>q</search>"
SEARCH = "<think>s</think><search>q</search>"
ANSWER = "<mem>n</mem><think>s</think><answer>Paris</answer>"


class Told:
    name = "search"

    def __init__(self, result: ToolResult) -> None:
        self.result = result

    async def call(self, argument: str) -> ToolResult:
        return self.result


def played(context: str, short_results: bool = True, **changes: Any) -> Trajectory:
    result = ToolResult(**{"passages": (LONG,), "short": (SHORT,), "notice": "found", **changes})
    prompt = PromptSettings(template="plain", short_results=short_results)
    agent = make_agent(TOKENIZER, context, tools={"search": Told(result)}, prompt=prompt)
    return play(agent, SEARCH, TURN, TURN, ANSWER)


def prompts(trajectory: Trajectory) -> list[str]:
    return [TOKENIZER.decode(turn.prompt_ids) for turn in trajectory.turns]


def test_a_result_is_whole_in_the_next_turn_and_short_after_it() -> None:
    first, second, third, fourth = prompts(played("full"))
    assert (first.count(LONG), second.count(LONG), third.count(LONG), fourth.count(LONG)) == (0, 1, 1, 1)
    assert fourth.count(f"<tool_response>\nfound\n{SHORT}\n</tool_response>") == 2
    assert fourth.index(LONG) > fourth.rindex(f"{SHORT}\n<"), "the last one is the whole one"
    assert [text.count(LONG) for text in prompts(played("window(2)"))] == [0, 1, 1, 1]


def test_without_the_setting_or_a_shorter_form_nothing_changes() -> None:
    whole = played("full", short_results=False)
    assert [text.count(LONG) for text in prompts(whole)] == [0, 1, 2, 3]
    assert prompts(played("full", short=None)) == prompts(whole)
    assert prompts(played("full", short=(LONG + LONG,))) == prompts(whole)
    assert len(rows_of(whole)) == 1


def test_what_is_trained_on_is_what_was_seen() -> None:
    trajectory = played("full")
    rows = rows_of(trajectory)
    assert [[segment.turn for segment in row.segments] for row in rows] == [[0, 1], [2], [3]]
    seen = {turn.index: turn.prompt_ids + turn.own_ids for turn in trajectory.turns}
    for row in rows:
        assert row.ids == seen[row.segments[-1].turn]
        for segment in row.segments:
            assert row.ids[segment.start : segment.stop] == trajectory.turns[segment.turn].generated_ids


def test_a_short_form_is_cut_to_the_budget_too() -> None:
    renderer = Renderer(TOKENIZER, PromptSettings(template="plain", short_results=True))
    result = ToolResult(passages=(LONG * 50,), short=(LONG * 20,))
    assert renderer.short_observation(result, budget_tokens=60) is None, "cut, both are the same length"
    short = renderer.short_observation(ToolResult(passages=(LONG * 50,), short=("a",)), budget_tokens=60)
    assert short is not None
    assert len(short) < 60


def test_it_is_saved_with_the_rollout(tmp_path: Path) -> None:
    trajectory = played("full")
    assert trajectory.turns[0].short_observation is not None
    save_rollouts(tmp_path / "r.jsonl", [trajectory], [{}])
    [loaded], _, _ = load_rollouts(tmp_path / "r.jsonl", TOKENIZER, make_agent(TOKENIZER).grammar)
    for turn, before in zip(loaded.turns, trajectory.turns, strict=True):
        assert turn.short_observation == before.short_observation
        assert turn.observation == before.observation


@pytest.mark.parametrize("context", ["memory", "last_turn", "generations", "window(1)"])
def test_a_context_without_old_results_refuses_the_setting(context: str) -> None:
    with pytest.raises(ConfigError, match="shows the last tool result alone"):
        resolve("quickstart", ["prompt.short_results=true", f"agent.context={context}"])
    assert resolve("quickstart", ["prompt.short_results=true", "agent.context=window(3)"])
