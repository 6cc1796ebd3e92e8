"""What the policy that RL starts from does with its notes, from a small sample of its rollouts.

Two numbers say how much a memory signal can add: how much of the answer the last notes hold, and how many groups are
silent, all their rollouts having the same score, so that the outcome teaches nothing there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from mempo.progress import Progress
from mempo.rewards.answer_match import says_one_of
from mempo.rewards.rollout_metrics import mean
from mempo.rollout.agent import DecodingSettings, Job, run_rollouts
from mempo.rollout.protocol import closing, opening
from mempo.rollout.question import Question
from mempo.rollout.tokenizer import Tokenizer
from mempo.rollout.trajectory import Trajectory
from mempo.train.batch import take
from mempo.train.rl import RlSettings, RlSetup

MOST_QUESTIONS = 8
"""Groups that are sampled; a step with fewer questions has as many."""


@dataclass(frozen=True)
class StartCheck:
    """Means over rollouts that infrastructure did not fail. None: not known.

    `gold_noted`: share of the gold answers that the last note of a rollout holds, a rollout without a note holding
    none; answers that stand in the question are left out. `complete_notes`: share of the rollouts whose last note holds
    all of them. `silent_groups`: share of the groups in which all scores are equal.
    """

    questions: int
    rollouts: int
    score: float | None
    gold_noted: float | None
    complete_notes: float | None
    silent_groups: float | None

    @property
    def report(self) -> str:
        def of(value: float | None) -> str:
            return "an unknown share" if value is None else f"{value:.0%}"

        mean_score = "not known" if self.score is None else f"{self.score:.2f}"
        return (
            f"start check on {self.rollouts} rollouts of {self.questions} questions: mean score {mean_score}; the last "
            f"notes hold {of(self.gold_noted)} of the gold answers, {of(self.complete_notes)} of them all; "
            f"{of(self.silent_groups)} of the groups are silent (all their scores equal)"
        )


def check_start(setup: RlSetup, settings: RlSettings, console: Console) -> StartCheck:
    """Sample groups as a step of RL would, with other noise, and look at their scores and last notes."""
    count, size = min(MOST_QUESTIONS, settings.questions_per_step), settings.rollouts_per_question
    asked = take(setup.questions, 0, count, f"{setup.seed} start check")
    jobs = [
        Job(question, rollout, (setup.seed, "start check", slot))
        for slot, question in enumerate(asked)
        for rollout in range(size)
    ]
    decoding = DecodingSettings(temperature=settings.temperature)
    with Progress(console, "start check", len(jobs), "rollout") as progress:
        trajectories = asyncio.run(
            run_rollouts(setup.agent, setup.sampler, jobs, decoding, lambda t: progress.step(t.done, t.note))
        )
    questions = [job.question for job in jobs]
    scores = [outcome.score for outcome in setup.scoring.outcomes(questions, trajectories)]
    return start_check(questions, trajectories, scores, size, setup.agent.renderer.tokenizer)


def start_check(
    questions: Sequence[Question],
    trajectories: Sequence[Trajectory],
    scores: Sequence[float | None],
    group_size: int,
    tokenizer: Tokenizer,
) -> StartCheck:
    """All lists are `[rollouts]`; groups are runs of `group_size` rollouts of one question, in order."""
    noted = [
        found
        for question, trajectory in zip(questions, trajectories, strict=True)
        if not trajectory.is_error and (found := _noted(question, trajectory, tokenizer))
    ]
    groups = [scores[first : first + group_size] for first in range(0, len(scores), group_size)]
    known = [[score for score in group if score is not None] for group in groups]
    return StartCheck(
        questions=len(groups),
        rollouts=len(trajectories),
        score=mean(scores),
        gold_noted=mean(sum(found) / len(found) for found in noted),
        complete_notes=mean(float(all(found)) for found in noted),
        silent_groups=mean(float(len(set(group)) == 1) for group in known if len(group) > 1),
    )


def _noted(question: Question, trajectory: Trajectory, tokenizer: Tokenizer) -> list[bool]:
    """Whether the last note holds the answer, by objective; those whose answer stands in the question are left out."""
    last = next((turn.note_ids for turn in reversed(trajectory.turns) if turn.note_ids is not None), None)
    # Without its tags, which would be glued to the words beside them.
    text = "" if last is None else tokenizer.decode(last).removeprefix(opening("mem")).removesuffix(closing("mem"))
    return [says_one_of(text, aliases) for aliases in question.objectives if not says_one_of(question.text, aliases)]
