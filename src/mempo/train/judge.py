"""What a batch of rollouts is worth: scores, note rewards, credit, and the facts that are reported and saved.

The local loop and the cluster's trainer both come through here; they differ only in who answers for log-probs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mempo.config.rewards import MemorySettings, OutcomeSettings
from mempo.config.train import CreditSettings
from mempo.credit import CustomCredit
from mempo.errors import UserError
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


def refuse_unscored(judge: Judge, questions: Sequence[Question], trajectories: Sequence[Trajectory]) -> None:
    """Stop where none of the rollouts counts; see `refuse_nothing_counted`."""
    refuse_nothing_counted(trajectories, _outcomes(judge, questions, trajectories))


def _outcomes(judge: Judge, questions: Sequence[Question], trajectories: Sequence[Trajectory]) -> list[OutcomeScore]:
    return [
        outcome_score(question, trajectory, judge.outcome, judge.custom_score)
        for question, trajectory in zip(questions, trajectories, strict=True)
    ]


def judge_rollouts(
    judge: Judge,
    questions: Sequence[Question],
    trajectories: Sequence[Trajectory],
    group_size: int,
    scorer: Scorer,
    reference: Scorer | None = None,
) -> Judged:
    """Judge `[questions × rollouts]`; groups are runs of `group_size` rollouts of one question, in order.

    A rollout without a score does not count: its notes are not scored, and it is in no measure but the count of its
    kind.

    Raises:
        UserError: an own score function that returns what is no score; no rollout has a score.
        ValueError: the lists do not belong together, or a group holds rollouts of two questions.
    """
    outcomes = _outcomes(judge, questions, trajectories)
    refuse_nothing_counted(trajectories, outcomes)
    counted = [outcome.counts for outcome in outcomes]
    notes: list[list[NoteScore]] = [[] for _ in trajectories]
    if judge.memory_signal:
        notes = score_notes(
            questions, trajectories, judge.codec, scorer, judge.memory, judge.window_tokens, reference, counted
        )
    credit = assign_credit(trajectories, outcomes, notes, group_size, judge.credit, judge.memory, judge.custom_credit)
    facts = [
        rollout_facts(question, trajectory, outcome, scored)
        for question, trajectory, outcome, scored in zip(questions, trajectories, outcomes, notes, strict=True)
    ]
    stops = [trajectory.stop for trajectory in trajectories]
    metrics: Mapping[str, float | None] = {**aggregate(facts, stops, counted), **credit.metrics}
    return Judged(outcomes, notes, credit, facts, dict(metrics))


_WHY_UNSCORED = {
    "overflow": "ran out of their context window, and reward.on_overflow is exclude: set it to score, or raise "
    "limits.max_context_tokens",
    "custom": "got None from the score function of reward.score",
    "no_gold": "belong to questions without a gold answer",
    "unmatchable_gold": "belong to questions whose gold answer is empty once it is normalised",
}


def refuse_nothing_counted(trajectories: Sequence[Trajectory], outcomes: Sequence[OutcomeScore]) -> None:
    """A step in which no rollout counts teaches nothing, and will be followed by another: stop, with the cause.

    Raises:
        UserError: no rollout has a score; how many failed, and why the others have none. Or no rollout has a turn.
    """
    if trajectories and not any(trajectory.turns or trajectory.is_error for trajectory in trajectories):
        needed = len(trajectories[0].question_ids)
        raise UserError(
            f"no rollout of the step had room for a single turn: the question alone has {needed} tokens; raise "
            "limits.max_context_tokens or shorten the questions"
        )
    if not trajectories or any(outcome.counts for outcome in outcomes):
        return
    failed = [trajectory for trajectory in trajectories if trajectory.is_error]
    if len(failed) == len(trajectories):
        raise UserError(f"all {len(failed)} rollouts of the step failed; the first: {_cause(failed[0])}")
    reasons = Counter(str(outcome.reason) for outcome in outcomes if outcome.reason != "error")
    parts = [f"{count} {_WHY_UNSCORED.get(reason, reason)}" for reason, count in reasons.most_common()]
    if failed:
        parts.append(f"{len(failed)} failed, the first: {_cause(failed[0])}")
    raise UserError(
        f"none of the {len(trajectories)} rollouts of the step has a score, so there is nothing to learn from: "
        + "; ".join(parts)
    )


def _cause(trajectory: Trajectory) -> str:
    told = (turn.tool_error for turn in trajectory.turns)
    return trajectory.error or next((error for error in told if error), "unknown")
