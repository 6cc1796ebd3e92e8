"""What a batch of rollouts is worth: scores, note rewards, credit, and the facts that are reported and saved.

The local loop and the cluster's trainer both come through here; they differ only in who answers for log-probs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mempo.config.rewards import MemorySettings, OutcomeSettings
from mempo.config.train import CreditSettings
from mempo.credit import CustomCredit
from mempo.interfaces import Scorer
from mempo.measures import aggregate, rollout_facts
from mempo.question import Question
from mempo.rewards.memory import NoteScore, score_notes
from mempo.rewards.outcome import CustomScore, OutcomeScore, outcome_score
from mempo.rewards.probe import ProbeCodec
from mempo.train.credit import Credit, assign_credit
from mempo.trajectory import Trajectory


@dataclass(frozen=True)
class Judge:
    """How rollouts are judged. `window_tokens`: the most that the scorer can see; a note with a longer context gives no
    signal. `memory_signal` False: notes are not scored, and earn nothing."""

    outcome: OutcomeSettings
    memory: MemorySettings
    credit: CreditSettings
    codec: ProbeCodec
    window_tokens: int | None = None
    memory_signal: bool = True
    custom_score: CustomScore | None = None
    custom_credit: CustomCredit | None = None


@dataclass(frozen=True)
class Judged:
    """All lists are `[rollouts]`; `notes` `[rollouts][notes]`. `metrics`: measures of the batch and of its credit."""

    outcomes: list[OutcomeScore]
    notes: list[list[NoteScore]]
    credit: Credit
    facts: list[dict[str, Any]]
    metrics: dict[str, float | None]

    def credited_facts(self) -> list[dict[str, Any]]:
        """Facts for the rollout file with the `advantage` of the outcome, and of each note (None: it earned none)."""
        return [
            {
                **fact,
                "advantage": outcome,
                "notes": [{**note, "advantage": by_turn.get(note["turn"])} for note in fact["notes"]],
            }
            for fact, outcome, by_turn in zip(self.facts, self.credit.outcome, self.credit.memory, strict=True)
        ]


def measure_rollouts(
    judge: Judge, questions: Sequence[Question], trajectories: Sequence[Trajectory]
) -> dict[str, float | None]:
    """Measures of rollouts that nothing is learnt from; their notes are not scored."""
    facts = [
        rollout_facts(question, trajectory, outcome_score(question, trajectory, judge.outcome, judge.custom_score))
        for question, trajectory in zip(questions, trajectories, strict=True)
    ]
    return aggregate(facts, [trajectory.stop for trajectory in trajectories])


def judge_rollouts(
    judge: Judge,
    questions: Sequence[Question],
    trajectories: Sequence[Trajectory],
    group_size: int,
    scorer: Scorer,
    reference: Scorer | None = None,
) -> Judged:
    """Judge `[questions × rollouts]`; groups are runs of `group_size` rollouts of one question, in order.

    Raises:
        UserError: an own score function that returns no score.
        ValueError: the lists do not belong together.
    """
    outcomes = [
        outcome_score(question, trajectory, judge.outcome, judge.custom_score)
        for question, trajectory in zip(questions, trajectories, strict=True)
    ]
    notes: list[list[NoteScore]] = [[] for _ in trajectories]
    if judge.memory_signal:
        notes = score_notes(questions, trajectories, judge.codec, scorer, judge.memory, judge.window_tokens, reference)
    credit = assign_credit(trajectories, outcomes, notes, group_size, judge.credit, judge.memory, judge.custom_credit)
    facts = [
        rollout_facts(question, trajectory, outcome, scored)
        for question, trajectory, outcome, scored in zip(questions, trajectories, outcomes, notes, strict=True)
    ]
    stops = [trajectory.stop for trajectory in trajectories]
    metrics: Mapping[str, float | None] = {**aggregate(facts, stops), **credit.metrics}
    return Judged(outcomes, notes, credit, facts, dict(metrics))
