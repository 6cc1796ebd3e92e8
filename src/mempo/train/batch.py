"""The batch of a step: which questions are asked, and which rows are trained on."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

from mempo.engine.update import TrainRow
from mempo.rollout.agent import Job
from mempo.rollout.question import Question
from mempo.rollout.trajectory import rows_of
from mempo.train.advantages import AdvantageBatch, Advantages

T = TypeVar("T")


def take(items: Sequence[T], start: int, count: int, seed: str) -> list[T]:
    """`count` items from position `start` of an endless sequence of seeded permutations of `items`."""
    found, orders = [], {}
    for position in range(start, start + count):
        epoch, index = divmod(position, len(items))
        if epoch not in orders:
            order = list(range(len(items)))
            random.Random(f"{seed} {epoch}").shuffle(order)
            orders[epoch] = order
        found.append(items[orders[epoch][index]])
    return found


def rollout_jobs(
    questions: Sequence[Question], seed: int, step: int, questions_per_step: int, rollouts_per_question: int
) -> tuple[list[Job], list[Question]]:
    """`[questions × rollouts]` jobs of a step (from 0) and the question of each; the same whenever they are asked for.

    The slot is part of the noise key: a question that comes twice in a batch gets two different groups.
    """
    batch = take(questions, step * questions_per_step, questions_per_step, f"{seed} rl")
    jobs = [
        Job(question, rollout, (seed, "rl", step, slot))
        for slot, question in enumerate(batch)
        for rollout in range(rollouts_per_question)
    ]
    return jobs, [job.question for job in jobs]


def training_rows(batch: AdvantageBatch, advantages: Advantages) -> list[TrainRow]:
    """The rows of all rollouts that count, with advantages and old log-probs per token. `row.trajectory` is the place
    of the rollout in the step."""
    rows = []
    for i, (place, trajectory) in enumerate(zip(batch.places, batch.trajectories, strict=True)):
        logprobs = {turn.index: turn.logprobs for turn in trajectory.turns}
        rows += [
            TrainRow(row, advantages.of_row(i, trajectory, row), row.spread(logprobs))
            for row in rows_of(trajectory, place)
        ]
    return rows


def advantages_by_turn(rows: Sequence[TrainRow], rollouts: int) -> list[dict[int, list[float]]]:
    """What rows carry on their generated tokens, as it is saved: `[rollouts]{turn: [generated tokens]}`."""
    found: list[dict[int, list[float]]] = [{} for _ in range(rollouts)]
    for row in rows:
        for segment in row.row.segments:
            found[row.row.trajectory][segment.turn] = list(row.advantages[segment.start : segment.stop])
    return found
