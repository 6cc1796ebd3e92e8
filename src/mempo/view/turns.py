"""A rollout taken apart for reading: turn by turn what the policy saw, what it wrote, and what was made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mempo.rollout.tokenizer import Tokenizer
from mempo.rollout.trajectory import Observation, Trajectory, Turn
from mempo.rollout.turn_text import note_text, thoughts
from mempo.storage.former_names import note_today
from mempo.view.rollouts import RolloutFile, gold_answers, known, p_of
from mempo.view.text import Piece, changes, marked, visible

_LOGPROB_STEPS = (0.05, 0.2, 0.5, 1.0, 2.0, 4.0)
"""Surprise in nats at which a token's colour changes."""


@dataclass(frozen=True)
class TokenView:
    """One token of a turn: its text, the classes that color it, and what is told on hover. `trained` False: written
    for the policy, so without loss."""

    text: str
    classes: str
    told: str
    trained: bool


@dataclass(frozen=True)
class TurnView:
    """One turn; `number` counts from 1. `prompt`: the question and what followed it in this turn's context. `history_
    tokens`: what the whole history would have taken. `cut`: what the context left out of the last tool result, in
    pieces. `note` compared with the note before. `observation` as later turns may see it whole."""

    number: int
    stop: str
    outcome: str
    note_status: str
    temperature: float
    question: str
    carried: str
    prompt_tokens: int
    history_tokens: int
    cut: tuple[str, ...]
    cut_tokens: int
    note: tuple[Piece, ...]
    note_tokens: int
    is_first_note: bool
    thought: str
    action: str
    action_kind: str
    observation: tuple[Piece, ...]
    tool_error: str
    tokens: tuple[TokenView, ...]
    numbers: tuple[tuple[str, str, str], ...]
    """`(name, value, what it is)`."""


def turns_of(file: RolloutFile, number: int, tokenizer: Tokenizer) -> tuple[dict[str, Any], list[TurnView]]:
    """The line of a rollout, and its turns. Raises LookupError: there is no such line."""
    facts = file.facts(number)
    trajectory, advantages = file.trajectory(facts, tokenizer)
    return facts, turn_views(trajectory, facts, advantages, tokenizer)


def turn_views(
    trajectory: Trajectory, facts: Mapping[str, Any], advantages: Mapping[int, Sequence[float]], tokenizer: Tokenizer
) -> list[TurnView]:
    """The turns of a rollout. `advantages` `{turn: [generated]}`."""
    gold = gold_answers(facts)
    notes = [note_today(note) for note in facts.get("notes") or () if isinstance(note, dict)]
    scored = {note["turn"]: note for note in notes if isinstance(note.get("turn"), int)}
    top = max((abs(a) for values in advantages.values() for a in values), default=0.0)
    views: list[TurnView] = []
    last_note: str | None = None
    history = len(trajectory.question_ids)
    for turn in trajectory.turns:
        note = note_text(turn, tokenizer)
        before = trajectory.turns[turn.index - 1] if turn.index else None
        cut = _cut(before.observation, turn.prompt_ids) if before is not None and before.observation else []
        action = turn.parsed.action
        views.append(
            TurnView(
                number=turn.index + 1,
                stop=turn.stop.value,
                outcome=turn.parsed.outcome.value,
                note_status=turn.parsed.note_status.value,
                temperature=turn.temperature,
                question=visible(tokenizer.decode(trajectory.question_ids)),
                carried=visible(tokenizer.decode(_after_question(trajectory, turn))),
                prompt_tokens=len(turn.prompt_ids),
                history_tokens=history,
                cut=tuple(visible(tokenizer.decode(ids)) for ids in cut),
                cut_tokens=sum(map(len, cut)),
                note=tuple(changes(last_note, note)) if note is not None else (),
                note_tokens=len(turn.note_ids or ()),
                is_first_note=last_note is None,
                thought=visible("\n".join(thoughts(turn, tokenizer))),
                action=visible(action.text) if action else "",
                action_kind=action.kind if action else "",
                observation=tuple(_observed(turn, tokenizer, gold)),
                tool_error=visible(turn.tool_error or ""),
                tokens=tuple(_tokens(turn, advantages.get(turn.index, ()), top, tokenizer)),
                numbers=tuple(_numbers(scored.get(turn.index), facts.get("advantage"))),
            )
        )
        last_note = note if note is not None else last_note
        history += len(turn.own_ids) + (len(turn.observation) if turn.observation else 0)
    return views


def _after_question(trajectory: Trajectory, turn: Turn) -> tuple[int, ...]:
    """What the context put behind the question; the whole prompt where it does not begin with the question."""
    question = trajectory.question_ids
    return turn.prompt_ids[len(question) :] if turn.prompt_ids[: len(question)] == question else turn.prompt_ids


def _cut(observation: Observation, prompt_ids: tuple[int, ...]) -> list[tuple[int, ...]]:
    """What of the passages of a tool result is not in the prompt: ends that were cut off."""
    ids = observation.ids
    if prompt_ids[len(prompt_ids) - len(ids) :] == ids:
        return []
    found = []
    prompt = np.asarray(prompt_ids, dtype="<i4")
    for part in observation.parts:
        kept = _longest_beginning(part.ids, prompt) if part.cuttable else len(part.ids)
        if kept < len(part.ids):
            found.append(part.ids[kept:])
    return found


def _longest_beginning(ids: tuple[int, ...], within: np.ndarray) -> int:
    """How many of the first ids stand in `within`, one after another."""
    width = len(ids)
    best = 0
    for start in np.flatnonzero(within == ids[0]) if width else ():
        piece = within[start : start + width]
        same = piece == np.asarray(ids[: len(piece)])
        best = max(best, int(np.argmin(same)) if not same.all() else len(piece))
    return best


def _observed(turn: Turn, tokenizer: Tokenizer, gold: Sequence[str]) -> list[Piece]:
    return marked(tokenizer.decode(turn.observation.ids), gold) if turn.observation else []


def _tokens(turn: Turn, advantages: Sequence[float], top: float, tokenizer: Tokenizer) -> list[TokenView]:
    decoded = tokenizer.decode_spans(turn.own_ids)
    found = []
    note = range(*turn.note_span) if turn.note_span else ()
    for i, token_id in enumerate(turn.own_ids):
        text = visible(decoded.text[decoded.starts[i] : decoded.starts[i + 1]])
        place = "note" if i in note else ""
        k = i - len(turn.forced_ids)
        if k < 0:
            found.append(TokenView(text, f"{place} forced", f"written for the policy, no loss · id {token_id}", False))
            continue
        classes, told = [place], []
        if k < len(advantages):
            classes.append(advantage_class(advantages[k], top))
            told.append(f"advantage {advantages[k]:+.4f}")
        else:
            classes.append("untrained")
            told.append("not trained on")
        if k < len(turn.logprobs):
            logprob = turn.logprobs[k]
            classes.append(f"l{sum(-logprob > step for step in _LOGPROB_STEPS)}")
            told.append(f"log-prob {logprob:.4f}, p {np.exp(logprob):.4f}")
        told.append(f"id {token_id}{' · note' if place else ''}")
        found.append(TokenView(text, " ".join(filter(None, classes)), " · ".join(told), True))
    return found


def advantage_class(value: float, top: float) -> str:
    """`p1` to `p4` above zero, `n1` to `n4` below, in fourths of the largest of the rollout; `zero`."""
    if not top or not value:
        return "zero"
    return f"{'p' if value > 0 else 'n'}{min(int(4 * abs(value) / top) + 1, 4)}"


def _numbers(note: Mapping[str, Any] | None, advantage: Any) -> list[tuple[str, str, str]]:
    rows = []
    if note is not None:
        base = known(note.get("p_baseline_raw"))
        rows += [
            ("P(mem)", p_of(note), "probability of the gold answer after the note alone"),
            ("P(baseline)", known(note.get("p_baseline")) if base is None else base, "the same after the baseline"),
            ("r", known(note.get("r")), "memory reward of the note"),
            ("note's advantage", known(note.get("advantage")), "what its tokens get beside the outcome's"),
        ]
    rows.append(("outcome's advantage", known(advantage), "what every token of the rollout gets"))
    shown = [
        (name, f"{value:+.3f}" if "adv" in name or name == "r" else f"{value:.3f}", about)
        for name, value, about in rows
        if value is not None
    ]
    reason = note.get("reason") if note else None
    return shown + ([("no reward", visible(str(reason)), "why the note could not be judged")] if reason else [])
