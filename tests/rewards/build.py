"""Turns and trajectories for tests, with made-up ids."""

from __future__ import annotations

from collections.abc import Sequence

from mempo.rollout.protocol import TurnGrammar, parse_turn
from mempo.rollout.question import Gold, Question
from mempo.rollout.trajectory import GenerationStop, Observation, ObservationPart, StopReason, Trajectory, Turn

NOTE, THINK = "<mem>n</mem>", "<think>t</think>"
QUESTION_IDS = (900, 901)


def question(gold: Gold | None = "Paris", probe: str | None = None, id: str = "q") -> Question:
    return Question(id, "?", gold, probe)


def turn(
    index: int,
    own: int | Sequence[int] = 6,
    note: tuple[int, int] | None = None,
    forced: int = 0,
    action: str = "<search>s</search>",
    text: str | None = None,
    seen: Sequence[int] = (),
    tool_error: str | None = None,
    prompt: Sequence[int] = QUESTION_IDS,
) -> Turn:
    """`own` tokens (ids or how many), the first `forced` of them forced; `note` is their span; `seen` is observed."""
    ids = tuple(range(1000 * (index + 1), 1000 * (index + 1) + own)) if isinstance(own, int) else tuple(own)
    written = text if text is not None else (NOTE if note else "") + THINK + action
    return Turn(
        index=index,
        prompt_ids=tuple(prompt),
        forced_ids=ids[:forced],
        generated_ids=ids[forced:],
        logprobs=(-1.0,) * (len(ids) - forced),
        stop=GenerationStop.STOP_STRING,
        parsed=parse_turn(written, index, TurnGrammar()),
        note_span=note,
        note_ids=None if note is None else ids[slice(*note)],
        observation=Observation((ObservationPart(tuple(seen), cuttable=True),)) if seen else None,
        tool_error=tool_error,
    )


def trajectory(
    *turns: Turn, answer: str | None = None, stop: StopReason = StopReason.ANSWERED, id: str = "q", rollout: int = 0
) -> Trajectory:
    return Trajectory(id, rollout, QUESTION_IDS, turns, stop, answer)


def answered(answer: str, extra: str = "") -> Trajectory:
    """Two turns in perfect format, the second of which answers; `extra` is text that spoils it."""
    last = turn(1, note=(0, 2), text=f"{NOTE}{THINK}{extra}<answer>{answer}</answer>")
    return trajectory(turn(0), last, answer=answer)
