"""A rollout on its way from the process that played it to the trainer.

Rows alone would not do: the memory signal needs notes, observations and what every turn saw. The bytes are those of the
rollout files (`mempo.storage.rollouts`), so a rollout that crosses the network and one that was saved are the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mempo.rewards.outcome import OutcomeScore
from mempo.rollout.protocol import TurnGrammar
from mempo.rollout.question import Question
from mempo.rollout.tokenizer import Tokenizer
from mempo.rollout.trajectory import StopReason, Trajectory
from mempo.storage.files import dump_line
from mempo.storage.rollouts import Sidecar, rollout_line, trajectory_of


def encode_rollout(trajectory: Trajectory) -> bytes:
    """The length of the line (8 bytes), the line, the token arrays."""
    sidecar = Sidecar()
    line = dump_line(rollout_line(trajectory, {}, {}, sidecar)).encode("utf-8")
    return len(line).to_bytes(8, "little") + line + sidecar.bytes()


def decode_rollout(data: bytes, tokenizer: Tokenizer, grammar: TurnGrammar) -> Trajectory:
    """The trajectory of `encode_rollout`; log-probs come back as float32."""
    stop = 8 + int.from_bytes(data[:8], "little")
    arrays = data[stop:]
    line = json.loads(data[8:stop])
    return trajectory_of(line, np.frombuffer(arrays, "<i4"), np.frombuffer(arrays, "<f4"), tokenizer, grammar)


@dataclass(frozen=True)
class RowKey:
    """verl's key of a row, `{uid}_{session}_{index}`: `uid` is the question of this step, `session` the rollout."""

    uid: str
    session: int
    index: int

    @classmethod
    def of(cls, key: str) -> RowKey:
        uid, session, index = key.rsplit("_", 2)
        return cls(uid, int(session), int(index))


@dataclass(frozen=True)
class Group:
    """The rollouts of one question of a step, in the order of their sessions, all of them: one that never arrived
    (its process died) is there as a failed one."""

    uid: str
    question: Question
    trajectories: tuple[Trajectory, ...]


def whole_group(uid: str, question: Question, arrived: Mapping[int, Trajectory], size: int) -> Group:
    """A group of `size` rollouts from those that arrived, `{session: trajectory}`.

    Raises:
        ValueError: a session outside the group, or a rollout of another question.
    """
    if not set(arrived) <= set(range(size)):
        raise ValueError(f"question {question.id}: sessions {sorted(arrived)} in a group of {size}")

    for trajectory in arrived.values():
        if trajectory.question_id != question.id:
            raise ValueError(f"a rollout of question {trajectory.question_id!r} in the group of {question.id!r}")

    def lost(session: int) -> Trajectory:
        return Trajectory(
            question.id, session, (), (), StopReason.SAMPLER_ERROR, error="the rollout never reached the trainer"
        )

    return Group(uid, question, tuple(arrived.get(session) or lost(session) for session in range(size)))


def no_rows_because(trajectory: Trajectory, outcome: OutcomeScore) -> str:
    """Why a rollout that does not count has no rows, for the log of the workers."""
    if trajectory.is_error:
        return trajectory.error or trajectory.stop.value
    return f"the rollout has no score ({outcome.reason}), so it does not count"


def dealt(groups: Sequence[Group]) -> tuple[list[Question], list[Trajectory]]:
    """`[questions × rollouts]`: the question of every rollout, and the rollouts, group by group."""
    pairs = [(group.question, trajectory) for group in groups for trajectory in group.trajectories]
    return [question for question, _ in pairs], [trajectory for _, trajectory in pairs]
