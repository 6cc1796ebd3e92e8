"""Does the probe tell notes apart? Asked before RL, since all memory advantages rest on it.

For some questions, P(answer | note) of three notes: a right one, the same with one fact wrong, and the right note of
another question. A policy that was never shown "question, note → answer" can fail to tell them apart, and then memory
advantages are noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mempo.config.rewards import ProbeSettings
from mempo.errors import counted
from mempo.rewards.memory import probe_request
from mempo.rewards.probe import ProbeTokenizer, build_probe
from mempo.rewards.rollout_metrics import mean
from mempo.rollout.interfaces import Scorer
from mempo.rollout.protocol import closing, opening
from mempo.rollout.question import Question

WANTED_SHARE = 0.8
"""The right note must win so often, against either other note."""
FEWEST = 4
"""Fewer questions say nothing."""


@dataclass(frozen=True)
class CheckNotes:
    """Contents of notes about one question, without tags. `one_wrong` None: no fact of it can be told apart."""

    question: Question
    question_ids: tuple[int, ...]
    right: str
    one_wrong: str | None
    other: str


@dataclass(frozen=True)
class ProbeCheck:
    """Means of P over the questions, and how often the right note had the larger one. None: not known."""

    questions: int
    p_right: float | None
    p_one_wrong: float | None
    p_other: float | None
    beats_one_wrong: float | None
    beats_other: float | None

    @property
    def separates(self) -> bool | None:
        """None: there were too few questions to say."""
        if self.questions < FEWEST or self.beats_other is None:
            return None
        known = [share for share in (self.beats_other, self.beats_one_wrong) if share is not None]
        return all(share >= WANTED_SHARE for share in known)

    @property
    def report(self) -> str:
        """The numbers, and when the notes do not separate what to do about it."""
        if self.separates is None:
            return f"probe check: only {counted(self.questions, 'question')} can be asked, which says nothing"

        def of(value: float | None) -> str:
            return "not known" if value is None else f"{value:.3g}"

        numbers = (
            f"probe check on {counted(self.questions, 'question')}: P(answer) is {of(self.p_right)} given a right "
            f"note, {of(self.p_one_wrong)} with one fact wrong, {of(self.p_other)} given another question's note; the "
            f"right one wins {_percent(self.beats_one_wrong)} and {_percent(self.beats_other)} of the time"
        )
        if self.separates:
            return numbers
        return (
            f"warning: {numbers}. At least {WANTED_SHARE:.0%} was expected: memory advantages would be mostly noise. "
            "Show the policy the probe in the cold start (sft.probe_share=0.2), give memory.probe.thought the sentence "
            "the checkpoint was trained with, or train on the outcome alone (rl.memory_signal=false)"
        )


def check_notes(
    questions: Sequence[Question], prompts: Sequence[tuple[int, ...]], notes: Sequence[str]
) -> list[CheckNotes]:
    """Three notes for each question out of its right note, `notes[i]`; `prompts[i]` is its `[system, question]`.

    The wrong fact is one gold answer replaced by that of another question, where the note holds it word for word. The
    other note is that of the next question with another answer; questions without one are left out.
    """
    made = []
    for i, (question, prompt, note) in enumerate(zip(questions, prompts, notes, strict=True)):
        rest = [j % len(questions) for j in range(i + 1, i + len(questions))]
        gold = question.probe_objectives
        others = [j for j in rest if gold and questions[j].probe_objectives != gold and notes[j] != note]
        if not others:
            continue
        strangers = [answer for j in others for answer in questions[j].probe_objectives]
        made.append(CheckNotes(question, prompt, note, _with_one_wrong(note, gold, strangers), notes[others[0]]))
    return made


def note_of_gold(question: Question) -> str:
    """A right note for a question that brings no search plan: its answers, one a line."""
    return "\n".join(question.probe_objectives)


def check_probe(
    notes: Sequence[CheckNotes], tokenizer: ProbeTokenizer, scorer: Scorer, settings: ProbeSettings
) -> ProbeCheck:
    """Score the notes in one call. Questions without a probe (no gold, or none left of it) are left out."""
    asked = [(one, probe) for one in notes if (probe := build_probe(tokenizer, one.question, settings)) is not None]
    requests = []
    for one, probe in asked:
        for text in (one.right, one.one_wrong, one.other):
            if text is not None:
                pieces = [(opening("mem"), True), (text, False), (closing("mem"), True)]
                requests.append(probe_request(one.question_ids + tokenizer.encode_mixed(pieces).ids, probe))
    answers = iter(scorer.score(requests, temperature=1.0) if requests else [])

    def p() -> float:
        return math.exp(float(next(answers).mean()))

    found = [(p(), None if one.one_wrong is None else p(), p()) for one, _ in asked]
    pairs = [(right, wrong) for right, wrong, _ in found if wrong is not None]
    return ProbeCheck(
        questions=len(found),
        p_right=mean([right for right, _, _ in found]),
        p_one_wrong=mean([wrong for _, wrong in pairs]),
        p_other=mean([other for _, _, other in found]),
        beats_one_wrong=mean([float(right > wrong) for right, wrong in pairs]),
        beats_other=mean([float(right > other) for right, _, other in found]),
    )


def _with_one_wrong(note: str, gold: Sequence[str], strangers: Sequence[str]) -> str | None:
    for answer in gold:
        wrong = next((stranger for stranger in strangers if stranger not in (*gold, "")), None)
        if answer and wrong and answer in note:
            return note.replace(answer, wrong)
    return None


def _percent(share: float | None) -> str:
    return "an unknown share" if share is None else f"{share:.0%}"
