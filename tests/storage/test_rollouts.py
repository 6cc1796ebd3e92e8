"""Saved rollouts come back exactly, and do not store a history many times."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mempo.config.rollout import DecodingSettings, PromptSettings
from mempo.rollout.agent import Agent, Job, rollout
from mempo.rollout.interfaces import SamplerError, ToolResult
from mempo.rollout.protocol import TurnGrammar
from mempo.rollout.question import Question
from mempo.rollout.tokenizer import common_prefix
from mempo.rollout.trajectory import Trajectory
from mempo.storage.rollouts import _longest_kept, load_rollouts, save_rollouts, tokens_path
from tests.rollout.test_agent import ANSWER, NOTED, SEARCH, Broken
from tests.tiny import Scripted, make_agent, make_tokenizer

TOKENIZER = make_tokenizer()
PAGE = ToolResult(passages=("</answer> Zürich\u2028東京", "second " * 30), notice="two")
QUESTION = Question("q", "Who?", "Paris")


def make(context: str = "memory", texts: tuple[object, ...] = (SEARCH, NOTED, ANSWER), **keywords: Any) -> Trajectory:
    result = keywords.pop("result", PAGE)
    assert isinstance(result, ToolResult)
    agent: Agent = make_agent(TOKENIZER, context, tools={"search": Broken(result)}, **keywords)
    sampler = Scripted(TOKENIZER, list(texts))  # type: ignore[arg-type]
    done = asyncio.run(rollout(agent, sampler, Job(QUESTION, 3, ("s",)), DecodingSettings()))
    return dataclasses.replace(done, turns=tuple(float32(turn) for turn in done.turns))


def float32(turn: object) -> object:
    logprobs = tuple(np.asarray(turn.logprobs, dtype=np.float32).tolist())  # type: ignore[attr-defined]
    return dataclasses.replace(turn, logprobs=logprobs)  # type: ignore[type-var]


CASES = {
    "memory": make(),
    "full": make("full"),
    "an end of sequence": make(texts=(SEARCH + "<eos>", ANSWER)),
    "cut by its token limit": make(texts=("so " * 100, ANSWER), max_turn_tokens=40),
    "a forced note": make(
        texts=(SEARCH, NOTED.removeprefix("<mem>"), ANSWER.removeprefix("<mem>")),
        prompt=PromptSettings(template="plain", force_mem=True),
    ),
    "a refused note": make(max_note_tokens=3),
    "a cut context": make("full", max_context_tokens=260, min_turn_tokens=60, max_obs_tokens=120),
    "a malformed turn": make(texts=("<search>a</search><answer>b</answer>", "", ANSWER)),
    "a failing tool": make(result=ToolResult(notice="503 \u2028 gone", error="unavailable")),  # type: ignore[arg-type]
    "a failing sampler": make(texts=(SEARCH, SamplerError("503"))),
    "no turn at all": make(texts=(), max_context_tokens=20),
    "something noted by the way": dataclasses.replace(make(), meta={"seed": [1, "rl"], "server": None}),
    "another temperature": dataclasses.replace(
        make(), turns=tuple(dataclasses.replace(turn, temperature=0.5) for turn in make().turns)
    ),
}


@pytest.mark.parametrize("trajectory", CASES.values(), ids=CASES.keys())
def test_a_rollout_comes_back_as_it_was(tmp_path: Path, trajectory: Trajectory) -> None:
    save_rollouts(tmp_path / "step-1.jsonl", [trajectory], [{}])
    (loaded,), _, _ = load_rollouts(tmp_path / "step-1.jsonl", TOKENIZER, TurnGrammar())
    assert loaded == trajectory


def test_many_rollouts_with_records_and_advantages_come_back(tmp_path: Path) -> None:
    trajectories = list(CASES.values())
    records = [
        {"question": f"question {n}\u2028", "gold": [["a"], ["b"]], "score": None} for n in range(len(trajectories))
    ]
    advantages = [{t.index: [0.25 * t.index] * len(t.generated_ids) for t in made.turns} for made in trajectories]
    file = tmp_path / "step-1.jsonl"
    save_rollouts(file, trajectories, records, advantages)
    loaded, lines, advantages = load_rollouts(file, TOKENIZER, TurnGrammar())
    assert loaded == trajectories
    assert [{key: line[key] for key in record} for line, record in zip(lines, records, strict=True)] == records
    assert advantages == advantages


def test_records_cannot_take_the_place_of_the_rollouts_own(tmp_path: Path) -> None:
    records = {"question_id": "x", "stop": "x", "answer": "x", "turns": 3, "question_ids": "x", "rollout": 9}
    save_rollouts(tmp_path / "s.jsonl", [CASES["memory"]], [records])
    (loaded,), _, _ = load_rollouts(tmp_path / "s.jsonl", TOKENIZER, TurnGrammar())
    assert loaded == CASES["memory"]


def test_the_jsonl_alone_holds_what_is_needed_to_compare(tmp_path: Path) -> None:
    file = tmp_path / "step-1.jsonl"
    save_rollouts(file, [CASES["memory"]], [{"score": 1.0}])
    tokens_path(file).unlink()
    line = json.loads(file.read_text())
    assert (line["question_id"], line["rollout"], line["stop"], line["answer"]) == ("q", 3, "answered", "Paris; Tokyo")
    assert line["score"] == 1.0
    assert [turn["outcome"] for turn in line["turns"]] == ["ok"] * 3
    assert [turn["note"] for turn in line["turns"]] == ["missing", "ok", "ok"]


def test_a_history_is_not_stored_many_times(tmp_path: Path) -> None:
    texts = (SEARCH, *[NOTED] * 14, ANSWER)
    trajectory = make("full", texts, max_turns=16, max_context_tokens=100_000)
    file = tmp_path / "step-1.jsonl"
    save_rollouts(file, [trajectory], [{}])
    items = tokens_path(file).stat().st_size / 4
    transcript = trajectory.total_tokens
    assert trajectory.processed_tokens > 6 * transcript
    # Observations are stored twice (as themselves, and in the next prompt), own tokens three times (ids, log-probs,
    # next prompt), notes and actions once more.
    assert items < 3.5 * transcript
    (loaded,), _, _ = load_rollouts(file, TOKENIZER, TurnGrammar())
    assert loaded == trajectory


IDS = st.lists(st.integers(0, 2), max_size=8).map(tuple)


@given(st.lists(IDS, min_size=1, max_size=5), IDS)
def test_a_prompt_is_kept_from_the_one_that_shares_most(known: list[tuple[int, ...]], prompt: tuple[int, ...]) -> None:
    source, kept = _longest_kept(known, prompt)
    shared = [common_prefix(ids, prompt) for ids in known]
    assert kept == max(shared)
    assert source == max(k for k, n in enumerate(shared) if n == kept), "of several the last"


def test_masks_of_tokens_that_look_like_padding_survive(tmp_path: Path) -> None:
    (turn,) = make(texts=("<think>t</think><answer>A</answer><eos>",)).turns
    trajectory = dataclasses.replace(make(), turns=(turn,))
    assert turn.generated_ids[-1] == TOKENIZER.eos_id
    save_rollouts(tmp_path / "s.jsonl", [trajectory], [{}])
    (loaded,), _, _ = load_rollouts(tmp_path / "s.jsonl", TOKENIZER, TurnGrammar())
    assert loaded.turns[0].generated_ids == turn.generated_ids


def test_nothing_saved_nothing_loaded(tmp_path: Path) -> None:
    save_rollouts(tmp_path / "s.jsonl", [], [])
    assert load_rollouts(tmp_path / "s.jsonl", TOKENIZER, TurnGrammar()) == ([], [], [])
