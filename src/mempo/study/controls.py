"""Functions that studies name by import path: a dense outcome, and controls that break the tie of a note and its r."""

from __future__ import annotations

from collections.abc import Sequence

from mempo.question import Question
from mempo.rewards.outcome import OutcomeSettings
from mempo.text import exact_match
from mempo.trajectory import Trajectory

_SEPARATOR = OutcomeSettings().separator


def share_right(question: Question, trajectory: Trajectory) -> float:
    """`reward=mempo.study.controls:share_right`: the share of objectives whose answer is given, at whatever place."""
    return answers_given(trajectory.answer, question.objectives)


def answers_given(answer: str | None, objectives: Sequence[Sequence[str]]) -> float:
    """The share of objectives of which an alias is a part of the answer (exact match after normalisation), whichever
    part; each part counts for one objective. More parts than objectives lower it, so that guessing cannot pay.

    With one objective the answer is one part.
    """
    if answer is None or not objectives:
        return 0.0
    parts = answer.split(_SEPARATOR) if len(objectives) > 1 else [answer]
    left, given = [part for part in parts if part.strip()], 0
    counted = max(len(left), len(objectives))
    for aliases in objectives:
        if (place := next((i for i, part in enumerate(left) if exact_match(part, aliases)), None)) is not None:
            del left[place]
            given += 1
    return given / counted
