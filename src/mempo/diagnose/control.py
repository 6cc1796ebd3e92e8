"""The short-context control: is the note worth something, or is a short context?

A gold answer is easier to predict from a short context than from a long one, whatever the context says. So the policy
scores it four times for every note:

    note      [system, question][note]
    other     [system, question][a note of about the same length, taken from another question]
    empty     [system, question]<mem></mem>
    history   [system, question] and every turn before the note

A note that the policy reads has a higher P than `other`; one that loses nothing comes near `history`. P is without
threshold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mempo.config.rewards import MemorySettings, ProbeSettings
from mempo.diagnose.numbers import mean, std
from mempo.diagnose.records import Batch, RolloutRecord, TurnRecord, spread
from mempo.rewards.answer_match import says_one_of
from mempo.rewards.memory import probe_request
from mempo.rewards.note_contexts import full_context, note_context
from mempo.rewards.note_reward import Evidence, note_reward
from mempo.rewards.probe import Probe, build_probe
from mempo.rollout.interfaces import Scorer, ScoreRequest
from mempo.rollout.question import Question
from mempo.rollout.tokenizer import Tokenizer
from mempo.rollout.trajectory import Trajectory

CONTEXTS = ("note", "other", "empty", "history")


@dataclass(frozen=True)
class ControlNote:
    """P of one note in each context of `CONTEXTS`; `turn` counts from 1. `other` None: no other question has a suitable
    note."""

    question_id: str
    turn: int
    note: float
    other: float | None
    empty: float
    history: float
    note_tokens: int
    other_tokens: int | None


def ask(
    batch: Batch,
    trajectories: Sequence[Trajectory],
    tokenizer: Tokenizer,
    scorer: Scorer,
    probe: ProbeSettings,
    notes: int,
    window: int | None = None,
) -> tuple[list[ControlNote], int]:
    """P of at most `notes` notes, spread evenly over the batch, and how many of those were left out: the question has
    no gold to predict, the saved reward was for a target of another length than the one made here, or a context
    is longer than the `window`. `trajectories` are those of `batch.rollouts`."""
    places = [
        (rollout, turn, trajectory)
        for rollout, trajectory in zip(batch.rollouts, trajectories, strict=True)
        for turn in rollout.noted
    ]
    chosen = [places[i] for i in spread(len(places), notes)]
    empty_ids = tokenizer.encode_trusted("<mem></mem>")
    requests: list[ScoreRequest] = []
    asked: list[tuple[RolloutRecord, TurnRecord, Probe, TurnRecord | None, dict[str, int]]] = []
    for rollout, turn, trajectory in chosen:
        target = _probe(rollout, tokenizer, probe)
        if target is None or (turn.signal and turn.signal.gold_tokens not in (0, len(target.gold))):
            continue
        donor = _donor(rollout, turn, places)
        contexts = {
            "note": note_context(trajectory, trajectory.turns[turn.index]),
            "empty": trajectory.question_ids + empty_ids,
            "history": full_context(trajectory, trajectory.turns[turn.index]),
        }
        if donor is not None:
            contexts["other"] = trajectory.question_ids + (donor[2].turns[donor[1].index].note_ids or ())
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


def control(notes: Sequence[ControlNote], left_out: int = 0) -> dict[str, float | int | None]:
    """Means of P over the notes in each context. `*_gain`: P(note) less P in that context, over the notes that have it;
    `*_gain_se`: its standard error with one mean a question, since notes of a question are not independent.
    `beats_other`: the share of notes with P(note) > P(other). `other_tokens_off`: mean |difference of lengths|.
    `left_out`: notes that could not be scored."""
    found: dict[str, float | int | None] = {"notes": len(notes), "left_out": left_out, **_means(notes)}
    for name in CONTEXTS[1:]:
        by_question: dict[str, list[float]] = {}
        for note in notes:
            if (other := getattr(note, name)) is not None:
                by_question.setdefault(note.question_id, []).append(note.note - other)
        spread_of_means = std([sum(values) / len(values) for values in by_question.values()])
        found[f"{name}_gain"] = mean(value for values in by_question.values() for value in values)
        found[f"{name}_gain_se"] = None if spread_of_means is None else spread_of_means / math.sqrt(len(by_question))
    found["beats_other"] = mean(float(n.note > n.other) for n in notes if n.other is not None)
    found["other_tokens_off"] = mean(abs(n.note_tokens - n.other_tokens) for n in notes if n.other_tokens is not None)
    return found


def control_by_turn(notes: Sequence[ControlNote]) -> dict[int, dict[str, float | int | None]]:
    """`{turn: {now_notes, now_note, now_other, …}}`, to be laid beside what the run saved; "now" is the policy that is
    asked, whatever policy made the rollouts."""
    turns: dict[int, dict[str, float | int | None]] = {}
    for turn in sorted({note.turn for note in notes}):
        there = [note for note in notes if note.turn == turn]
        turns[turn] = {"now_notes": len(there), **{f"now_{name}": p for name, p in _means(there).items()}}
    return turns


def _means(notes: Sequence[ControlNote]) -> dict[str, float | None]:
    return {name: mean(getattr(note, name) for note in notes) for name in CONTEXTS}


_Place = tuple[RolloutRecord, TurnRecord, Trajectory]


def _donor(rollout: RolloutRecord, turn: TurnRecord, places: Sequence[_Place]) -> _Place | None:
    """The note nearest in length of another question that does not hold an answer to this one; of two equally near
    ones the shorter."""
    gold = [alias for aliases in rollout.objectives for alias in aliases]
    by_distance = sorted(places, key=lambda place: (abs(place[1].note_tokens - turn.note_tokens), place[1].note_tokens))
    others = (place for place in by_distance if place[0].question != rollout.question)
    return next((place for place in others if not says_one_of(place[1].note or "", gold)), None)


def _probe(rollout: RolloutRecord, tokenizer: Tokenizer, settings: ProbeSettings) -> Probe | None:
    question = Question(rollout.question_id, rollout.question, rollout.objectives or None, rollout.probe)
    return build_probe(tokenizer, question, settings)
