"""Run folders made for looking at: played by the agent loop with a scripted policy, saved as runs save."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mempo.engine.model import save_policy
from mempo.rollout.agent import Job, run_rollouts
from mempo.rollout.interfaces import ToolResult
from mempo.rollout.question import Question
from mempo.rollout.trajectory import Trajectory
from mempo.storage.rollouts import save_rollouts
from tests.tiny import Scripted, make_agent, make_tokenizer, tiny_llama

TOKENIZER = make_tokenizer()
QUESTION = "capital of France; capital of Japan"
GOLD = [["Paris"], ["Tokyo", "東京"]]
TEXTS = (
    "<think>look</think><search>capital of France</search>",
    "<mem>France: Paris</mem><think>now Japan</think><search>capital of Japan</search>",
    "<mem>France: Paris; Japan: Tokyo</mem><think>done</think><answer>Paris; Tokyo</answer>",
)
PASSAGES = ("Paris is the capital of France, not Parisian.", "Tokyo, 東京, is the capital of Japan.")


class Finds:
    """A tool that answers with its passages in turn."""

    name = "search"

    def __init__(self, passages: Sequence[str]) -> None:
        self._left = list(passages)

    async def call(self, argument: str) -> ToolResult:
        return ToolResult(passages=(self._left.pop(0),))


def played(
    texts: Sequence[str] = TEXTS,
    passages: Sequence[str] = PASSAGES,
    question: str = QUESTION,
    rollout: int = 0,
    **limits: Any,
) -> Trajectory:
    room = {"max_turn_tokens": 20_000, "max_obs_tokens": 20_000, "max_context_tokens": 100_000, **limits}
    agent = make_agent(TOKENIZER, tools={"search": Finds(passages)}, **room)
    jobs = [Job(Question("q0", question, None), rollout, (0,))]
    return asyncio.run(run_rollouts(agent, Scripted(TOKENIZER, texts), jobs))[0]


def facts(**more: Any) -> dict[str, Any]:
    """What a run writes beside a rollout."""
    base = {"p_baseline": 0.5, "p_baseline_raw": 0.5}
    notes = [
        {"turn": turn, "p_mem": p, "p_mem_raw": p, "r": p - 0.5, "advantage": advantage, **base}
        for turn, p, advantage in ((1, 0.25, -1.0), (2, 0.75, 1.0))
    ]
    made = {"question": QUESTION, "gold": GOLD, "score": 1.0, "em": 1.0, "is_error": False, "violations": {}}
    made |= {"num_turns": 3, "tool_errors": 0, "actions": {"search": 2, "answer": 1}, "note_tokens": [9, 15]}
    return {**made, "notes": notes, "advantage": 0.5, **more}


def make_run(
    path: Path,
    rollouts: Sequence[tuple[Trajectory, Mapping[str, Any]]] | None = None,
    metrics: Sequence[Mapping[str, Any]] = (),
    config: str = "seed: 7\n",
    advantages: bool = True,
) -> Path:
    """A run of two steps with the rollouts of one."""
    rollouts = rollouts or [(played(), facts())]
    save_policy(tiny_llama(TOKENIZER), path / "final")
    (path / "config.yaml").write_text(config, encoding="utf-8")
    lines = metrics or [
        {"stage": "rl", "step": n, "score": n / 2, "rollouts": 4.0, "stop/answered": 3.0} for n in (1, 2)
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    values = [
        {turn.index: [0.5 * (-1) ** turn.index] * len(turn.generated_ids) for turn in trajectory.turns}
        for trajectory, _ in rollouts
    ]
    (path / "rollouts").mkdir(exist_ok=True)
    file = path / "rollouts" / "step-1.jsonl"
    save_rollouts(file, [t for t, _ in rollouts], [f for _, f in rollouts], values if advantages else None)
    return path
