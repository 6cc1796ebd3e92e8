"""The short-context control: is the note worth something, or is a short context?

A gold answer is easier to predict from a short context than from a long one, whatever it says. So the policy is asked
four times about every note:

    note      [system, question][note]
    other     [system, question][a note of about the same length, taken from another question]
    empty     [system, question]<mem></mem>
    history   [system, question] and every turn before the note

A note that is read separates from `other`; one that loses nothing comes near `history`. P is without threshold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mempo.config.rewards import MemorySettings, ProbeSettings
from mempo.diagnose.numbers import mean, std
from mempo.diagnose.records import Batch, RolloutRecord, TurnRecord
from mempo.rewards.answer_match import says_one_of
from mempo.rewards.memory import probe_request
from mempo.rewards.note_contexts import full_context, note_context
from mempo.rewards.note_reward import Evidence, note_reward
from mempo.rewards.probe import Probe, probe_or_reason
from mempo.rollout.interfaces import Scorer, ScoreRequest
from mempo.rollout.question import Question
from mempo.rollout.tokenizer import Codec
from mempo.rollout.trajectory import Trajectory

CONTEXTS = ("note", "other", "empty", "history")


@dataclass(frozen=True)
class ControlNote:
    """P of one note in each context of `CONTEXTS`; `turn` counts from 1. `other` None: no other question has a note."""

    question_id: str
    turn: int
    note: float
    other: float | None
    empty: float
    history: float
    note_tokens: int
    other_tokens: int | None


@dataclass(frozen=True)
class Control:
    """Means of P over `notes` notes. `*_gain`: P(note) less P(that context), over the notes that have it; `*_gain_se`:
    its standard error over questions. `beats_other`: the share of notes with P(note) > P(other). `other_tokens_off`:
    mean |difference of lengths|. `left_out`: notes that could not be asked about."""

    notes: int
    left_out: int
    note: float | None
    other: float | None
    empty: float | None
    history: float | None
    other_gain: float | None
    other_gain_se: float | None
    empty_gain: float | None
    empty_gain_se: float | None
    history_gain: float | None
    history_gain_se: float | None
    beats_other: float | None
    other_tokens_off: float | None


def ask(
    batch: Batch,
    trajectories: Sequence[Trajectory],
    codec: Codec,
    scorer: Scorer,
    probe: ProbeSettings,
    notes: int,
    window: int | None = None,
) -> tuple[list[ControlNote], int]:
    """P of at most `notes` notes, spread evenly over the batch, and how many of those were left out: the question has
    no gold to predict, the saved reward was about a target of another length than the rollout file tells, or a context
    outgrows the `window`. `trajectories` belong to `batch.rollouts`."""
    places = [
        (rollout, turn, trajectory)
        for rollout, trajectory in zip(batch.rollouts, trajectories, strict=True)
        for turn in rollout.noted
    ]
    chosen = [places[i] for i in spread(len(places), notes)]
    donors = _Donors(places)
    empty_ids = codec.encode_trusted("<mem></mem>")
    probes: dict[str, Probe | None] = {}
    requests: list[ScoreRequest] = []
    asked: list[tuple[RolloutRecord, TurnRecord, Probe, TurnRecord | None, dict[str, int]]] = []
    for rollout, turn, trajectory in chosen:
        key = f"{rollout.question_id}\0{rollout.question}\0{rollout.objectives}"
        if key not in probes:
            probes[key] = _probe(rollout, codec, probe)
        target = probes[key]
        if target is None or (turn.signal and turn.signal.gold_tokens not in (0, len(target.gold))):
            continue
        donor = donors.nearest(rollout, turn)
        contexts = {
            "note": note_context(trajectory, trajectory.turns[turn.index]),
            "empty": trajectory.question_ids + empty_ids,
            "history": full_context(trajectory, trajectory.turns[turn.index]),
        }
        if donor is not None:
            contexts["other"] = trajectory.question_ids + donors.ids(donor)
        if window is not None and max(map(len, contexts.values())) + target.gold[-1] + 1 > window:
            continue
        where = {}
        for name, context in contexts.items():
            where[name] = len(requests)
            requests.append(probe_request(context, target))
        asked.append((rollout, turn, target, donor[1] if donor else None, where))
    answers = scorer.score(requests, temperature=1.0) if requests else []
    plain = MemorySettings(probe=probe)
    found = []
    for rollout, turn, target, other, where in asked:
        values = {
            name: note_reward(Evidence(turn.index, answers[i], objectives=target.objectives), plain).p_mem_raw
            for name, i in where.items()
        }
        if any(value is None for value in values.values()):  # a log-prob that is not a number
            continue
        found.append(
            ControlNote(
                question_id=rollout.question_id,
                turn=turn.index + 1,
                note=values["note"] or 0.0,
                other=values.get("other"),
                empty=values["empty"] or 0.0,
                history=values["history"] or 0.0,
                note_tokens=turn.note_tokens,
                other_tokens=other.note_tokens if other else None,
            )
        )
    return found, len(chosen) - len(found)


def control(notes: Sequence[ControlNote], left_out: int = 0) -> Control:
    def gain(of: Callable[[ControlNote], float | None]) -> tuple[float | None, float | None]:
        """Mean difference over notes, and its standard error with one mean a question: its notes are no
        independent tries."""
        by_question: dict[str, list[float]] = {}
        for note in notes:
            other = of(note)
            if other is not None:
                by_question.setdefault(note.question_id, []).append(note.note - other)
        everything = [value for values in by_question.values() for value in values]
        spread_of_means = std([sum(values) / len(values) for values in by_question.values()])
        error = None if spread_of_means is None else spread_of_means / math.sqrt(len(by_question))
        return mean(everything), error

    other_gain, other_se = gain(lambda n: n.other)
    empty_gain, empty_se = gain(lambda n: n.empty)
    history_gain, history_se = gain(lambda n: n.history)
    return Control(
        notes=len(notes),
        left_out=left_out,
        note=mean(n.note for n in notes),
        other=mean(n.other for n in notes),
        empty=mean(n.empty for n in notes),
        history=mean(n.history for n in notes),
        other_gain=other_gain,
        other_gain_se=other_se,
        empty_gain=empty_gain,
        empty_gain_se=empty_se,
        history_gain=history_gain,
        history_gain_se=history_se,
        beats_other=mean(float(n.note > n.other) for n in notes if n.other is not None),
        other_tokens_off=mean(abs(n.note_tokens - n.other_tokens) for n in notes if n.other_tokens is not None),
    )


def control_by_turn(notes: Sequence[ControlNote]) -> list[dict[str, float | int | None]]:
    """Mean P in each context by turn."""
    rows: list[dict[str, float | int | None]] = []
    for turn in sorted({note.turn for note in notes}):
        there = [note for note in notes if note.turn == turn]
        means = {name: mean(getattr(note, name) for note in there) for name in CONTEXTS}
        rows.append({"turn": turn, "notes": len(there), **means})
    return rows


def spread(count: int, wanted: int) -> list[int]:
    """`wanted` of `count` positions, evenly, the first among them; all of them where there are no more."""
    return list(range(count)) if count <= wanted else [i * count // wanted for i in range(wanted)]


_Donor = tuple[RolloutRecord, TurnRecord, Trajectory]


class _Donors:
    """Notes by length, to lend one of another question."""

    def __init__(self, places: Sequence[_Donor]) -> None:
        self._places = sorted(places, key=lambda place: place[1].note_tokens)

    def nearest(self, rollout: RolloutRecord, turn: TurnRecord) -> _Donor | None:
        """The note nearest in length of another question that does not hold an answer to this one; of two equally near
        ones the first."""
        gold = [alias for aliases in rollout.objectives for alias in aliases]
        by_distance = sorted(self._places, key=lambda place: abs(place[1].note_tokens - turn.note_tokens))
        return next(
            (
                place
                for place in by_distance
                if place[0].question != rollout.question and not says_one_of(place[1].note or "", gold)
            ),
            None,
        )

    @staticmethod
    def ids(place: _Donor) -> tuple[int, ...]:
        _, turn, trajectory = place
        return trajectory.turns[turn.index].note_ids or ()


def _probe(rollout: RolloutRecord, codec: Codec, settings: ProbeSettings) -> Probe | None:
    question = Question(rollout.question_id, rollout.question, rollout.objectives or None, rollout.probe)
    found = probe_or_reason(codec, question, settings)
    return found if isinstance(found, Probe) else None
