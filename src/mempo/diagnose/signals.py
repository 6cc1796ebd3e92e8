"""Every signal there is, as what it would pay for the notes of a batch, computed by training's own functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mempo.config.rewards import PRESETS, MemorySettings
from mempo.config.train import AdvantageSettings
from mempo.diagnose.by_state import memory_by_state, outcome_by_state, states_of_turns
from mempo.rollout.interfaces import Scorer, ScoreRequest
from mempo.rollout.question import Question
from mempo.rollout.trajectory import Trajectory
from mempo.train.advantages import AdvantageFunction, batch_advantages
from mempo.train.score_batch import Scoring, score_batch

ByTurn = list[dict[int, float]]
"""`[rollouts]{turn: advantage}`; turns to which a signal gives nothing are left out."""

MEMORY: dict[str, dict[str, Any]] = {
    "recommended": {},
    "lost notes ignored": {"lost_notes": "ignored"},
    "original": {"preset": "original"},
    "no std": {"normalize_std": False},
    "log ratio": {"reward": "log_ratio"},
    "against what was seen": {"baseline": "visible"},
    "against the last note": {"baseline": "previous_note"},
}
"""Memory signals by name, as settings of `memory.*`; the probe is the run's. None fades: fading changes what all notes
are paid by the same factor."""
SUMS = (("outcome", "recommended"), ("outcome by state", "by state"))
"""Signals whose sum is one too."""


class Remembering:
    """A scorer that keeps its answers: most signals ask for the same P."""

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer
        self._known: dict[ScoreRequest, np.ndarray] = {}

    def score(self, requests: Sequence[ScoreRequest], temperature: float = 1.0) -> list[np.ndarray]:
        new = [request for request in dict.fromkeys(requests) if request not in self._known]
        if new:
            self._known.update(zip(new, self._scorer.score(new, temperature=temperature), strict=True))
        return [self._known[request] for request in requests]


def signals_of(
    scoring: Scoring, questions: Sequence[Question], trajectories: Sequence[Trajectory], group_size: int, scorer: Scorer
) -> dict[str, ByTurn]:
    """What each signal pays for the notes of `[questions × rollouts]`. The run's own settings, those of `scoring`, are
    added where they are not among `MEMORY`."""
    remembering = Remembering(scorer)

    def advantages(
        memory: MemorySettings, settings: AdvantageSettings, own: AdvantageFunction | None = None
    ) -> tuple[ByTurn, ByTurn]:
        """Of the outcome and of memory."""
        mine = replace(scoring, memory=memory, memory_signal=True)
        batch = score_batch(mine, questions, trajectories, remembering).counted(group_size)
        made = batch_advantages(batch, settings, memory, own)
        outcome: ByTurn = [{} for _ in trajectories]
        notes: ByTurn = [{} for _ in trajectories]
        for i, place in enumerate(batch.places):
            outcome[place] = {turn.index: made.outcome[i] for turn in trajectories[place].turns}
            notes[place] = made.memory[i]
        return outcome, notes

    def by_state() -> tuple[ByTurn, ByTurn]:
        mine = replace(scoring, memory=plain, memory_signal=True)
        batch = score_batch(mine, questions, trajectories, remembering).counted(group_size)
        outcome: ByTurn = [{} for _ in trajectories]
        notes: ByTurn = [{} for _ in trajectories]
        for group in batch.members:
            states = states_of_turns([batch.trajectories[i] for i in group])
            of_notes = memory_by_state([batch.notes[i] for i in group], [batch.lost[i] for i in group], states)
            of_scores = outcome_by_state([batch.scores[i] for i in group], states)
            for n, i in enumerate(group):
                outcome[batch.places[i]], notes[batch.places[i]] = of_scores[n], of_notes[n]
        return outcome, notes

    settings = AdvantageSettings()
    found: dict[str, ByTurn] = {}
    plain = MemorySettings(probe=scoring.memory.probe, fade_batches=None)
    found["outcome"], _ = advantages(plain, settings)
    found["outcome by state"], found["by state"] = by_state()
    for name, memory in _memory_signals(scoring.memory).items():
        _, found[name] = advantages(memory, settings)
    if scoring.own_advantages is not None:
        _, found["own function, memory"] = advantages(scoring.memory, settings, scoring.own_advantages)
    for first, second in SUMS:
        found[f"{first} + {second}"] = [_sum(a, b) for a, b in zip(found[first], found[second], strict=True)]
    return found


def _memory_signals(run: MemorySettings) -> dict[str, MemorySettings]:
    """The signals of `MEMORY` with the run's probe, and the run's own."""
    on_offer = {}
    for name, keys in MEMORY.items():
        change = PRESETS[keys["preset"]].get("probe", {}) if "preset" in keys else {}
        settings = {**keys, "fade_batches": None}
        on_offer[name] = MemorySettings(**settings, probe=run.probe.model_copy(update=change))
    mine = run.model_copy(update={"fade_batches": None})
    return on_offer if mine in on_offer.values() else {**on_offer, "as in the run": mine}


def _sum(a: Mapping[int, float], b: Mapping[int, float]) -> dict[int, float]:
    return {turn: value + b.get(turn, 0.0) for turn, value in a.items()}
