"""What the gold answer is predicted from: the note, what came before it, and what is seen after it.

mem            [system, question][note]
full           [system, question] and every earlier turn with its observation
visible        the prompt of the turn, as the policy saw it
previous_note  [system, question][the note in force before]
ahead(j)       [system, question][note][tool results of the next j turns]
"""

from __future__ import annotations

from collections.abc import Callable

from mempo.rollout.trajectory import Trajectory, Turn

Ids = tuple[int, ...]


def note_context(trajectory: Trajectory, turn: Turn) -> Ids:
    """`[system, question][note]`: the ids that the note takes in a rebuilt context, so what is scored is what is seen.

    Raises:
        ValueError: the turn holds no closed note.
    """
    if turn.note_ids is None:
        raise ValueError(f"turn {turn.index} of question {trajectory.question_id} holds no closed note")
    return trajectory.question_ids + turn.note_ids


def full_context(trajectory: Trajectory, turn: Turn) -> Ids:
    """`[system, question]` and every turn before this one, with notes and observations."""
    ids = list(trajectory.question_ids)
    for earlier in trajectory.turns[: turn.index]:
        ids += earlier.own_ids
        if earlier.observation is not None:
            ids += earlier.observation.ids
    return tuple(ids)


def visible_context(trajectory: Trajectory, turn: Turn) -> Ids:
    """What the policy saw when it began the turn; what was forced on it belongs to the turn."""
    return turn.prompt_ids


def previous_note_context(trajectory: Trajectory, turn: Turn) -> Ids:
    """`[system, question]` and the last note closed before this turn, the first turn's too; without one, the question
    alone."""
    notes = (earlier.note_ids for earlier in reversed(trajectory.turns[: turn.index]))
    return trajectory.question_ids + next((ids for ids in notes if ids is not None), ())


def ahead_contexts(trajectory: Trajectory, turn: Turn, k: int) -> list[Ids]:
    """`[system, question][note]` and the tool results of turns t .. t+j-1, for j = 1 .. k as far as there are any."""
    contexts = []
    ids = note_context(trajectory, turn)
    for later in trajectory.turns[turn.index : turn.index + k]:
        if later.observation is None:
            break
        ids += later.observation.ids
        contexts.append(ids)
    return contexts


BASELINES: dict[str, Callable[[Trajectory, Turn], Ids]] = {
    "full": full_context,
    "visible": visible_context,
    "previous_note": previous_note_context,
}
"""The context of each `baseline` that needs one; `none` costs no pass."""
