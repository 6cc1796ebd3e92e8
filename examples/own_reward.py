"""Own reward: `reward=examples.own_reward:score`. The right answer, less a price for every search."""

from __future__ import annotations

from mempo.rewards.answer_match import exact_match
from mempo.rollout.question import Question
from mempo.rollout.trajectory import Trajectory

PRICE = 0.05


def score(question: Question, trajectory: Trajectory) -> float | None:
    """A finite number, or None for "cannot be scored": such a rollout does not count."""
    if not question.objectives:
        return None
    # `answer` is None when the rollout ended without one; nothing is right then.
    answers = (trajectory.answer or "").split(";")
    right = len(answers) == len(question.objectives) and all(
        exact_match(answer, aliases) for answer, aliases in zip(answers, question.objectives, strict=True)
    )
    actions = [turn.parsed.action for turn in trajectory.turns]
    searches = sum(action is not None and action.kind == "search" for action in actions)
    return float(right) - PRICE * searches
