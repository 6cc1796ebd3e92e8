"""Own advantages by question: `advantages=examples.own_advantages_by_question:leave_one_out`.

Each rollout against the mean of the others
(RLOO)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def leave_one_out(
    scores: Sequence[float], notes: Sequence[Mapping[int, float | None]]
) -> tuple[list[float], list[dict[int, float]]]:
    """Called once per question. `scores` `[rollouts]`, `notes` `[rollouts]{turn: reward}`; None: no signal.

    Returns the outcome advantages `[rollouts]`, written on every generated token, and the memory advantages
    `[rollouts]{turn: advantage}`, added on the tokens of the note of that turn.
    """
    outcome = [against_others(score, scores) for score in scores]
    every_note = [reward for by_turn in notes for reward in by_turn.values()]
    memory = [
        {turn: against_others(reward, every_note) for turn, reward in by_turn.items() if reward is not None}
        for by_turn in notes
    ]
    return outcome, memory


def against_others(value: float, values: Sequence[float | None]) -> float:
    known = [v for v in values if v is not None]
    return 0.0 if len(known) < 2 else value - (sum(known) - value) / (len(known) - 1)
