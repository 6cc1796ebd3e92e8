"""Saved rollouts as a diagnosis reads them: texts, scores and advantages, in groups of one question.

Rollouts that do not count (`rollout_metrics.counts`) are counted and left out: they say nothing about the policy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from mempo.config.rewards import MemorySettings
from mempo.config.train import AdvantageSettings
from mempo.rewards.rollout_metrics import counts, unscored
from mempo.rollout.question import objectives_of
from mempo.rollout.tokenizer import Tokenizer
from mempo.rollout.trajectory import Trajectory, Turn
from mempo.rollout.turn_text import note_text
from mempo.storage.former_names import note_today
from mempo.train.advantages import group_advantages, note_slots


@dataclass(frozen=True)
class NoteSignal:
    """What a run recorded about a note, see `rewards.NoteScore`. `r` None: no signal, for `reason`. `p_baseline`: P
    given the baseline's context, whichever it is. `advantage` None: the note got none."""

    r: float | None
    p_mem: float | None = None
    p_baseline: float | None = None
    p_mem_raw: float | None = None
    gold_tokens: int = 0
    kept_mem: int = 0
    kept_baseline: int | None = None
    reason: str | None = None
    advantage: float | None = None


@dataclass(frozen=True)
class TurnRecord:
    """One turn. `note` None: no closed note. `query`: what a tool was asked. `observation`: what it said, as the policy
    saw it. `note_slots`: how many of the `generated_tokens` carry the note's advantage."""

    index: int
    note: str | None = None
    note_tokens: int = 0
    note_slots: int = 0
    generated_tokens: int = 0
    query: str | None = None
    observation: str | None = None
    signal: NoteSignal | None = None


@dataclass(frozen=True)
class RolloutRecord:
    """One rollout that counts. `objectives` `[objectives][aliases]`. `probe`: what notes are
    asked to predict, None: the first alias of each objective. `advantage` None: not known."""

    question_id: str
    question: str
    objectives: tuple[tuple[str, ...], ...]
    turns: tuple[TurnRecord, ...]
    probe: str | None = None
    score: float | None = None
    em: float | None = None
    format_ok: bool | None = None
    advantage: float | None = None

    @property
    def noted(self) -> Iterator[TurnRecord]:
        """Turns whose note the memory signal is about: closed notes from the second turn on."""
        return (turn for turn in self.turns[1:] if turn.note is not None)

    def note_before(self, turn: TurnRecord) -> TurnRecord | None:
        """The turn of the note in force before `turn`, the first turn's included."""
        earlier = [other for other in self.turns[: turn.index] if other.note is not None]
        return earlier[-1] if earlier else None

    def observations_before(self, turn: TurnRecord) -> list[str]:
        return [other.observation for other in self.turns[: turn.index] if other.observation is not None]


@dataclass(frozen=True)
class Batch:
    """Rollouts of one file. `groups` `[questions][rollouts]`; `errors` and `unscored`
    are left out. `advantages`: where they come from, `saved`, `recomputed` (the file does not hold them) or
    `none` (an evaluation, or a function of the user's own whose advantages were not saved)."""

    name: str
    groups: tuple[tuple[RolloutRecord, ...], ...]
    errors: int = 0
    advantages: str = "saved"
    unscored: int = 0

    @property
    def rollouts(self) -> list[RolloutRecord]:
        return [rollout for group in self.groups for rollout in group]

    @property
    def noted(self) -> list[tuple[RolloutRecord, TurnRecord]]:
        return [(rollout, turn) for rollout in self.rollouts for turn in rollout.noted]

    def thinned(self, questions: int) -> Batch:
        """The same with at most so many groups, evenly chosen."""
        return replace(self, groups=tuple(self.groups[i] for i in spread(len(self.groups), questions)))


def spread(count: int, wanted: int) -> list[int]:
    """`wanted` of `count` positions, evenly, the first among them; all of them where there are no more."""
    return list(range(count)) if count <= wanted else [i * count // wanted for i in range(wanted)]


def batch_of(
    name: str,
    trajectories: Sequence[Trajectory],
    lines: Sequence[Mapping[str, Any]],
    tokenizer: Tokenizer,
    group_size: int,
) -> Batch:
    """Records of one rollout file. Groups are `group_size` neighbouring lines of one question; where the lines do not
    come so, runs of lines of one question."""
    records = [_rollout(trajectory, line, tokenizer) for trajectory, line in zip(trajectories, lines, strict=True)]
    groups = []
    for positions in grouped([line["question_id"] for line in lines], group_size):
        sound = tuple(records[i] for i in positions if counts(lines[i]))
        if sound:
            groups.append(sound)
    errors = sum(bool(line.get("is_error")) for line in lines)
    saved = all("advantage" in line for line in lines)
    return Batch(name, tuple(groups), errors, "saved" if saved else "none", sum(map(unscored, lines)))


def grouped(question_ids: Sequence[str], size: int) -> list[range]:
    """Positions of each group."""
    chunks = [range(first, min(first + size, len(question_ids))) for first in range(0, len(question_ids), size)]
    if all(len({question_ids[i] for i in chunk}) == 1 for chunk in chunks):
        return chunks
    starts = [i for i in range(len(question_ids)) if i == 0 or question_ids[i] != question_ids[i - 1]]
    return [range(a, b) for a, b in zip(starts, [*starts[1:], len(question_ids)], strict=True)]


def with_recomputed_advantages(batch: Batch, settings: AdvantageSettings, memory: MemorySettings) -> Batch:
    """The advantages that the settings give to the saved scores and rewards; none to a rollout without a score."""
    groups = []
    for group in batch.groups:
        scores = {i: rollout.score for i, rollout in enumerate(group) if rollout.score is not None}
        rewards = [{turn.index: turn.signal.r for turn in group[i].noted if turn.signal} for i in scores]
        made = group_advantages(list(scores.values()), rewards, settings, memory)
        outcome = dict(zip(scores, made.outcome, strict=True))
        by_turn = dict(zip(scores, made.memory, strict=True))
        groups.append(
            tuple(
                replace(
                    rollout,
                    advantage=outcome.get(i),
                    turns=tuple(_with_advantage(turn, by_turn.get(i, {})) for turn in rollout.turns),
                )
                for i, rollout in enumerate(group)
            )
        )
    return replace(batch, groups=tuple(groups), advantages="recomputed")


def _with_advantage(turn: TurnRecord, by_turn: Mapping[int, float]) -> TurnRecord:
    if turn.signal is None:
        return turn
    return replace(turn, signal=replace(turn.signal, advantage=by_turn.get(turn.index)))


def _rollout(trajectory: Trajectory, line: Mapping[str, Any], tokenizer: Tokenizer) -> RolloutRecord:
    signals = {note["turn"]: _signal(note_today(note)) for note in line.get("notes") or ()}
    return RolloutRecord(
        question_id=trajectory.question_id,
        question=line.get("question") or "",
        objectives=objectives_of(line.get("gold")),
        turns=tuple(_turn(turn, signals.get(turn.index), tokenizer) for turn in trajectory.turns),
        probe=line.get("probe"),
        **{name: line.get(name) for name in ("score", "em", "format_ok", "advantage")},
    )


def _signal(note: Mapping[str, Any]) -> NoteSignal:
    return NoteSignal(**{field.name: note[field.name] for field in fields(NoteSignal) if field.name in note})


def _turn(turn: Turn, signal: NoteSignal | None, tokenizer: Tokenizer) -> TurnRecord:
    action = turn.parsed.action
    observation = None
    if turn.observation is not None:
        # The first and the last part are the wrapper around what the tool said.
        parts = turn.observation.parts[1:-1] or turn.observation.parts
        observation = "".join(tokenizer.decode(part.ids) for part in parts)
    return TurnRecord(
        index=turn.index,
        note=note_text(turn, tokenizer),
        note_tokens=len(turn.note_ids or ()),
        note_slots=len(note_slots(turn)),
        generated_tokens=len(turn.generated_ids),
        query=action.text if action is not None and not turn.parsed.is_answer else None,
        observation=observation,
        signal=signal,
    )
