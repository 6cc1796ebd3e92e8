"""Score a batch of rollouts: the outcome score of each, the memory reward of every note, and what is reported of them.

The local loop and the cluster's trainer both come through here; they differ only in who answers for log-probs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mempo.config.rewards import MemorySettings, OutcomeSettings
from mempo.config.train import AdvantageSettings
from mempo.errors import UserError
from mempo.rewards.memory import NoteScore, score_notes
from mempo.rewards.note_reward import silent
from mempo.rewards.outcome import CustomScore, OutcomeScore, outcome_score
from mempo.rewards.probe import NoSignal, ProbeTokenizer
from mempo.rewards.rollout_metrics import aggregate, rollout_record
from mempo.rollout.interfaces import Scorer
from mempo.rollout.protocol import ParseOutcome, TurnGrammar
from mempo.rollout.question import Question
from mempo.rollout.trajectory import Trajectory
from mempo.train.advantages import AdvantageBatch, AdvantageFunction, Advantages, refuse_two_questions


@dataclass(frozen=True)
class Scoring:
    """How rollouts are scored, and what their advantages are made with. `window_tokens`: the most that the scorer can
    see; a note with a longer context gives no signal. `memory_signal` False: notes are not scored, and earn nothing.
    `grammar` tells which turns should have a note, where `memory.lost_notes` asks for it."""

    outcome: OutcomeSettings
    memory: MemorySettings
    advantages: AdvantageSettings
    tokenizer: ProbeTokenizer
    window_tokens: int | None = None
    memory_signal: bool = True
    custom_score: CustomScore | None = None
    own_advantages: AdvantageFunction | None = None
    grammar: TurnGrammar = field(default_factory=TurnGrammar)
    max_failed_share: float = 1.0

    def outcomes(self, questions: Sequence[Question], trajectories: Sequence[Trajectory]) -> list[OutcomeScore]:
        """The score of each rollout, `[rollouts]`."""
        return [
            outcome_score(question, trajectory, self.outcome, self.custom_score)
            for question, trajectory in zip(questions, trajectories, strict=True)
        ]


@dataclass(frozen=True)
class ScoredBatch:
    """All lists are `[rollouts]`; `notes` `[rollouts][notes]`. `facts`: what is saved of each; `metrics`: the measures
    of the batch."""

    questions: Sequence[Question]
    trajectories: Sequence[Trajectory]
    outcomes: list[OutcomeScore]
    notes: list[list[NoteScore]]
    facts: list[dict[str, Any]]
    metrics: dict[str, float | None]

    def counted(self, group_size: int, step: int = 1) -> AdvantageBatch:
        """The rollouts that count, in groups: runs of `group_size` rollouts of one question, in order.

        Raises:
            ValueError: the rollouts are not whole groups, or a group holds rollouts of two questions.
        """
        total = len(self.trajectories)
        if total % group_size:
            raise ValueError(f"{total} rollouts are not whole groups of {group_size}")
        for first in range(0, total, group_size):
            group = range(first, first + group_size)
            refuse_two_questions([self.trajectories[i] for i in group], group)
        lost = [frozenset(n.turn for n in notes if n.reason == NoSignal.LOST) for notes in self.notes]
        scores = {i: outcome.score for i, outcome in enumerate(self.outcomes) if outcome.score is not None}
        return AdvantageBatch(
            step=step,
            questions=[self.questions[i] for i in scores],
            trajectories=[self.trajectories[i] for i in scores],
            scores=list(scores.values()),
            notes=[{note.turn: note.r for note in self.notes[i]} for i in scores],
            groups=[i // group_size for i in scores],
            places=list(scores),
            lost=[lost[i] for i in scores],
        )

    def records_with(self, batch: AdvantageBatch, advantages: Advantages) -> list[dict[str, Any]]:
        """Facts for the rollout file with the `advantage` of the outcome (None: the rollout does not count), and that
        of each note (None: it earned none)."""
        outcome = dict(zip(batch.places, advantages.outcome, strict=True))
        memory = dict(zip(batch.places, advantages.memory, strict=True))
        return [
            {
                **fact,
                "advantage": outcome.get(i),
                "notes": [{**note, "advantage": memory.get(i, {}).get(note["turn"])} for note in fact["notes"]],
            }
            for i, fact in enumerate(self.facts)
        ]


def score_batch(
    scoring: Scoring,
    questions: Sequence[Question],
    trajectories: Sequence[Trajectory],
    scorer: Scorer,
    reference: Scorer | None = None,
) -> ScoredBatch:
    """Score rollouts; `questions[i]` belongs to `trajectories[i]`.

    A rollout without a score does not count: its notes are not scored, and it is in no measure but the count of its
    kind.

    Raises:
        UserError: an own score function that returns what is no score; no rollout has a score; too many failed.
        ValueError: the lists do not belong together.
    """
    outcomes = scoring.outcomes(questions, trajectories)
    refuse_nothing_counted(trajectories, outcomes)
    refuse_mostly_failed(trajectories, scoring.max_failed_share)
    counted = [outcome.counts for outcome in outcomes]
    notes: list[list[NoteScore]] = [[] for _ in trajectories]
    if scoring.memory_signal:
        notes = score_notes(
            questions,
            trajectories,
            scoring.tokenizer,
            scorer,
            scoring.memory,
            scoring.window_tokens,
            reference,
            counted,
        )
        if scoring.memory.lost_notes == "worst":
            notes = [
                with_lost_notes(trajectory, found, scoring.grammar) if counts else found
                for trajectory, found, counts in zip(trajectories, notes, counted, strict=True)
            ]
    facts = [rollout_record(*one) for one in zip(questions, trajectories, outcomes, notes, strict=True)]
    metrics = aggregate(facts, [trajectory.stop for trajectory in trajectories], counted)
    return ScoredBatch(questions, trajectories, outcomes, notes, facts, metrics)


def with_lost_notes(trajectory: Trajectory, notes: Sequence[NoteScore], grammar: TurnGrammar) -> list[NoteScore]:
    """The notes of a rollout, and those that are lost: they should be there and are missing, never closed, empty, or
    refused for their length; or the turn broke elsewhere and led to no action, so that its note is carried nowhere. As
    with notes, turns from the second on are looked at. What was measured of a note that is there stays."""
    lost = {
        turn.index
        for turn in trajectory.turns[1:]
        if (turn.note_ids is None or turn.parsed.outcome is not ParseOutcome.OK)
        and turn.generated_ids
        and grammar.note_rule(turn.index) == "required"
    }
    there = {note.turn: note for note in notes}
    losses = {
        turn: replace(there[turn], r=None, reason=NoSignal.LOST) if turn in there else silent(turn, NoSignal.LOST)
        for turn in lost
    }
    return [note for _, note in sorted({**there, **losses}.items())]


def measure_rollouts(
    scoring: Scoring, questions: Sequence[Question], trajectories: Sequence[Trajectory]
) -> dict[str, float | None]:
    """Measures of rollouts that nothing is learnt from; their notes are not scored."""
    outcomes = scoring.outcomes(questions, trajectories)
    facts = [rollout_record(*one) for one in zip(questions, trajectories, outcomes, strict=True)]
    return aggregate(facts, [trajectory.stop for trajectory in trajectories])


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


def refuse_mostly_failed(trajectories: Sequence[Trajectory], limit: float) -> None:
    """Stop where more than a share `limit` of the rollouts failed: a service that is down for most of them.

    Raises:
        UserError: how many did, and the cause of the first.
    """
    failed = [trajectory for trajectory in trajectories if trajectory.is_error]
    if len(failed) > limit * len(trajectories):
        raise UserError(
            f"{len(failed)} of {len(trajectories)} rollouts of the step failed, more than the share of "
            f"rl.max_failed_share {limit:g}; the first: {_cause(failed[0])}; fix it and continue with --resume"
        )


def _cause(trajectory: Trajectory) -> str:
    told = (turn.tool_error for turn in trajectory.turns)
    return trajectory.error or next((error for error in told if error), "unknown")
