"""Own advantages of a whole step: `advantages=examples.own_advantages:by_step`.

Scores are centred on their group and divided by the spread of the whole step, so that a question on which rollouts
hardly differ is not blown up; and notes earn the more, the more groups have nothing to learn from their outcome.
"""

from __future__ import annotations

import numpy as np

from mempo.train.advantages import AdvantageBatch


def by_step(batch: AdvantageBatch) -> tuple[list[float], list[dict[int, float]]]:
    """Called once per step. Returns the outcome advantages `[rollouts]`, written on every generated token, and the
    memory advantages `[rollouts]{turn: advantage}`, added on the tokens of the note of that turn."""
    outcome, memory = np.zeros(len(batch.scores)), [dict[int, float]() for _ in batch.scores]
    silent = 0
    for group in batch.members:
        scores = np.array([batch.scores[i] for i in group])
        outcome[group] = scores - scores.mean()
        silent += bool((scores == scores[0]).all())
        rewards = {(i, turn): r for i in group for turn, r in batch.notes[i].items() if r is not None}
        for (i, turn), r in rewards.items():
            memory[i][turn] = r - sum(rewards.values()) / len(rewards)
    weight = silent / len(batch.members)
    spread = outcome.std() + 1e-6
    return (outcome / spread).tolist(), [{turn: weight * a for turn, a in by_turn.items()} for by_turn in memory]
