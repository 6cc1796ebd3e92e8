"""Many notes summed up: the same metrics for all notes, for those of each turn, and for those of each saved step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mempo.diagnose.notes import Note
from mempo.diagnose.numbers import correlation_within, mean, ratio, std
from mempo.diagnose.records import Batch

MIN_NOTES = 8
"""A turn with fewer notes with a reward says nothing about drift."""

MEANS: dict[str, Callable[[Note], float | None]] = {
    "note_tokens": lambda note: float(note.record.note_tokens),
    "p_mem": lambda note: note.signal.p_mem,
    "p_mem_raw": lambda note: note.signal.p_mem_raw,
    "p_baseline": lambda note: note.signal.p_baseline,
    "r": lambda note: note.signal.r,
    "advantage_question": lambda note: note.advantage_question,
    "advantage_turn": lambda note: note.advantage_turn,
    "advantage": lambda note: note.signal.advantage,
    "facts_per_note": lambda note: len(note.text.facts),
    "factless": lambda note: float(not note.text.facts),
    "novelty": lambda note: note.text.novelty,
    "copies": lambda note: note.text.copy,
    "templates": lambda note: note.template,
}
"""Means over the notes of which each is known. `advantage`: what training gave, weight and gate included."""

SHARES = {
    "unheld": ("unheld", "facts"),
    "dropped": ("dropped", "held_before"),
    "gold_kept": ("gold_kept", "gold_seen"),
    "gold_lost": ("gold_lost", "gold_noted_before"),
}
"""Sums over notes that are divided, by fields of `NoteText`; None where there is nothing to take a share of."""

Summary = dict[str, float | int | None]


def summary(notes: Sequence[Note]) -> Summary:
    """Counts of notes (`scored`: with a reward) and of what the shares rest on, then `MEANS` and `SHARES`.
    `gold_unseen`: of all the gold in notes, the share that no observation had shown."""
    unseen, kept = _count(notes, "gold_unseen"), _count(notes, "gold_kept")
    counts: Summary = {
        "notes": len(notes),
        "scored": sum(note.signal.r is not None for note in notes),
        "with_advantage": sum(note.signal.advantage is not None for note in notes),
        **{name: _count(notes, name) for name in ("facts", "gold_seen", "gold_noted_before")},
    }
    return {
        **counts,
        **{name: mean(map(value, notes)) for name, value in MEANS.items()},
        "r_std": std([note.signal.r for note in notes if note.signal.r is not None]),
        **{name: ratio(_count(notes, part), _count(notes, whole)) for name, (part, whole) in SHARES.items()},
        "gold_unseen": ratio(unseen, kept + unseen),
    }


def by_turn(batch: Batch, notes: Sequence[Note]) -> list[dict[str, Any]]:
    """The summary of every turn from the second on that some rollout reached, with `turn` (from 1) and how many
    `rollouts` reached it."""
    lengths = [len(rollout.turns) for rollout in batch.rollouts]
    return [
        {
            "turn": turn,
            "rollouts": sum(length >= turn for length in lengths),
            **summary([note for note in notes if note.turn == turn]),
        }
        for turn in range(2, max(lengths, default=0) + 1)
    ]


def drift(turns: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """The largest mean of a turn less the smallest; None where fewer than two turns have enough notes."""
    known = [turn[name] for turn in turns if turn["scored"] >= MIN_NOTES and turn[name] is not None]
    return max(known) - min(known) if len(known) > 1 else None


def gold_tokens(notes: Sequence[Note]) -> dict[str, Any]:
    """How many gold tokens the threshold kept in the mean, over the notes whose log-probs are known. `baseline` None:
    the baseline has no tokens of its own. `silent`: notes without a reward, by reason."""
    signals = [note.signal for note in notes if note.record.signal is not None]
    known = [signal for signal in signals if signal.p_mem_raw is not None]
    both = [signal for signal in known if signal.kept_baseline is not None]
    silent = Counter(str(signal.reason) for signal in signals if signal.r is None)
    total = sum(signal.gold_tokens for signal in known)
    return {
        "gold_tokens": total,
        "mem": ratio(sum(signal.kept_mem for signal in known), total),
        "baseline": ratio(sum(s.kept_baseline or 0 for s in both), sum(s.gold_tokens for s in both)),
        "notes": len(signals),
        "silent": dict(sorted(silent.items())),
        "silent_share": ratio(silent.total(), len(signals)),
    }


def correlations(notes: Sequence[Note]) -> Summary:
    """What r goes with: correlations in [-1, 1] within pools (the same question and turn), so that neither how hard a
    question is nor how late a turn is can make one. None where one side does not vary; `*_notes`: how many notes each
    rests on.

    `length_alike`: with length among notes of the pool that are equally complete, since a complete note is longer.
    `complete_punished`: of the notes that contain all of the answer seen so far, in pools where others contain less,
    the share with a negative advantage. `alike_share`: the part of Σ |A_memory| given in pools whose notes are all
    equally complete, where only wording is left to pay for.
    """
    scored = [note for note in notes if note.signal.r is not None]
    pools = [(note.group, note.turn) for note in scored]
    rewards = [note.signal.r for note in scored]
    complete = [note.completeness for note in scored]
    lengths = [float(note.record.note_tokens) for note in scored]
    found: Summary = {}
    for name, within, values in (
        ("outcome", pools, [note.rollout.score for note in scored]),
        ("length", pools, lengths),
        ("length_alike", list(zip(pools, complete, strict=True)), lengths),
        ("completeness", pools, complete),
    ):
        found[name], found[f"{name}_notes"] = correlation_within(within, rewards, values)
    levels: dict[tuple[int, int], set[float]] = {}
    for pool, share in zip(pools, complete, strict=True):
        if share is not None:
            levels.setdefault(pool, set()).add(share)
    paid = [
        (note.signal.advantage, share, len(levels[pool]))
        for note, pool, share in zip(scored, pools, complete, strict=True)
        if note.signal.advantage is not None and pool in levels
    ]
    found["complete_punished"] = mean(float(a < 0) for a, share, kinds in paid if share == 1.0 and kinds > 1)
    found["alike_share"] = ratio(sum(abs(a) for a, _, kinds in paid if kinds == 1), sum(abs(a) for a, _, _ in paid))
    return found


def _count(notes: Sequence[Note], name: str) -> int:
    values = [getattr(note.text, name) for note in notes]
    return sum(len(value) if isinstance(value, tuple) else value for value in values)
