"""From a configuration to an agent: what cannot work together is refused there."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from mempo.config import resolve
from mempo.engine.sampler import generate_batch
from mempo.errors import ConfigError, UserError
from mempo.rewards.outcome import OutcomeScore
from mempo.rollout.interfaces import SamplingParams
from mempo.rollout.plugins import call_own
from mempo.rollout.trajectory import StopReason, Trajectory
from mempo.setup import load_data, make_agent
from mempo.train.score_batch import refuse_nothing_counted
from tests.tiny import chat_tokenizer, make_tokenizer, tiny_llama


def test_a_template_that_opens_the_thought_leaves_no_room_for_the_note() -> None:
    tokenizer = chat_tokenizer("opens_think")
    config = resolve("quickstart", ["prompt.template=chat", "prompt.system=be brief"]).config
    with pytest.raises(ConfigError, match=r"prompt\.force_mem=true"):
        make_agent(config, tokenizer, {})
    for way_out in ("prompt.force_mem=true", "agent.notes=optional"):
        config = resolve("quickstart", ["prompt.template=chat", "prompt.system=be brief", way_out]).config
        assert make_agent(config, tokenizer, {}).name == "memory"


def test_questions_that_nothing_can_match_are_refused(tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text('{"question": "What?", "answer": "?"}\n', "utf-8")
    (tmp_path / "c.jsonl").write_text('{"text": "something"}\n', "utf-8")
    config = resolve(None, [f"data.train={tmp_path / 'q.jsonl'}", f"data.corpus={tmp_path / 'c.jsonl'}"]).config
    with pytest.raises(UserError, match="no training question can be scored"):
        load_data(config, tmp_path / "work")


def test_own_code_that_raises_is_one_line_with_its_place() -> None:
    def broken(_: int) -> int:
        return {}["a\nb"]

    with pytest.raises(UserError, match=r"^my reward raised KeyError: .*test_build\.py, line \d+\)$") as caught:
        call_own("my reward", broken, 1)
    assert "\n" not in str(caught.value)


def test_damaged_weights_are_said_at_the_first_token() -> None:
    policy = tiny_llama(make_tokenizer())
    embedding: Any = policy.model.get_input_embeddings()
    with torch.no_grad():
        embedding.weight.fill_(math.nan)
    with pytest.raises(UserError, match="not finite numbers"):
        generate_batch(policy, [[5, 6]], [SamplingParams(4, seed=0)])


def test_a_step_without_room_for_a_turn_is_said() -> None:
    empty = Trajectory("q", 0, (1, 2, 3), (), StopReason.CONTEXT_OVERFLOW)
    with pytest.raises(UserError, match="the question alone has 3 tokens"):
        refuse_nothing_counted([empty, empty], [OutcomeScore(0.0, None, False, {})] * 2)
