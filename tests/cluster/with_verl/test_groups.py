# pyright: reportMissingImports=false
"""Which groups a step is made of: verl's own buffer, our agent loop and trainer, a step with its update."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import torch

from mempo.cluster.trainer import GroupBuffer
from mempo.rollout.question import Question
from tests.cluster.with_verl.one_process import OneProcess
from tests.cluster.with_verl.test_parity import ROLLOUTS, Case, resolved

LONG = "a question without room for an answer " * 60


def reply(question: str, session: int, turn: int) -> str:
    """Rollouts of `equal…` all are right, and their notes differ; those of others are right every other time."""
    if not turn:
        return f"<mem>{question} {'city ' * session}</mem><think>so</think><search>where</search>"
    right = question.startswith("equal") or session % 2
    note, answer = "city" if session else "none", "city" if right else "town"
    return f"<mem>{note} {session}</mem><think>b</think><answer>{answer}</answer>"


class Buffered(OneProcess):
    """With verl's replay buffer, as the trainer makes it. `more`: the questions that it is given when it asks."""

    def __init__(self, case: Case, folder: Path, more: list[Question]) -> None:
        super().__init__(resolved(case, folder), folder / "run", case.ranks)
        self.more, self.played = more, 0
        trainer: Any = self.trainer
        trainer.trainer_mode = "sync"
        trainer._add_prompts_to_generate = self._refill
        trainer.replay_buffer = trainer._build_replay_buffer()
        trainer.replay_buffer.poll_interval = 0.0

    async def _play(self, questions: Any, reply: Any) -> dict[str, bool]:
        whole = await super()._play(questions, reply)
        for uid, fine in whole.items():
            self.played += 1
            tag = {"is_prompt": True, "status": "finished" if fine else "failure", "global_steps": self.played}
            self.queue.put([uid], "train", None, [tag])
        return whole

    def _refill(self, count: int) -> int:
        asked, self.more = self.more[:count], self.more[count:]
        assert len(asked) == count, "asked for more than there is"
        asyncio.run(self._play(asked, reply))
        return count

    def taken(self) -> list[str]:
        return [group.question.id for group in self.trainer._groups]


def question(name: str, text: str = "which place is it?") -> Question:
    return Question(name, text, "city")


FILTERED = Case(('cluster.verl={"algorithm.filter_groups.enable": true}', "rl.updates_per_step=1"), questions=2)


def test_a_group_without_rows_keeps_its_place_and_groups_of_equal_scores_are_replaced(tmp_path: Path) -> None:
    run = Buffered(FILTERED, tmp_path, [question("varied"), question("spare")])
    assert isinstance(run.trainer.replay_buffer, GroupBuffer)
    run.step([question("equal"), question("roomless", LONG)], reply)
    assert sorted(run.taken()) == ["roomless", "varied"]  # the spare one was played, and not chosen
    assert run.metrics["training/filter_groups/evicted_samples"] == 1
    assert run.metrics["training/filter_groups/discarded_surplus_samples"] == 1
    assert run.metrics["mempo/rollouts"] == 2 * ROLLOUTS
    assert run.workers.optimizer_steps == 1
    assert run.queue.tags["mempo"] == {}


def test_a_group_that_failed_keeps_its_place_too(tmp_path: Path) -> None:
    def failing(name: str, session: int, turn: int) -> Any:
        return ConnectionError("gone") if name == "failed" else reply(name, session, turn)

    run = Buffered(FILTERED, tmp_path, [question("varied"), question("spare")])
    run.step([question("failed"), question("equal")], failing)
    assert sorted(run.taken()) == ["failed", "varied"]
    assert run.metrics["mempo/errors"] == ROLLOUTS


def test_groups_of_equal_scores_are_kept_unless_asked_and_teach_through_their_notes(tmp_path: Path) -> None:
    run = Buffered(Case(("rl.updates_per_step=1",), questions=2), tmp_path, [])
    begun = {key: tensor.clone() for key, tensor in run.policy.model.state_dict().items()}
    run.step([question("equal1"), question("equal2")], reply)
    assert run.taken() == ["equal1", "equal2"]
    assert run.metrics["mempo/score"] == 1.0
    assert run.metrics["actor/grad_norm"] > 1e-4
    assert any(not torch.equal(begun[key], tensor) for key, tensor in run.policy.model.state_dict().items())
