"""What a rollout leaves behind: turns of token ids, and the training rows made of them. No torch here.

Token ids are the only truth. Texts are derived from ids; masks are derived from lengths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain
from typing import Any

from mempo.rollout.protocol import NoteStatus, ParsedTurn

Span = tuple[int, int]  # [start, stop) in tokens


class GenerationStop(StrEnum):
    """Why the sampler stopped."""

    STOP_STRING = "stop_string"
    EOS = "eos"
    LENGTH = "length"


class StopReason(StrEnum):
    """Why a rollout ended. Every value has a metric `stop/<reason>`."""

    ANSWERED = "answered"
    TURN_LIMIT = "turn_limit"
    TOKEN_LIMIT = "token_limit"
    CONTEXT_OVERFLOW = "context_overflow"
    MALFORMED = "malformed"
    TOOL_ERROR = "tool_error"
    SAMPLER_ERROR = "sampler_error"

    @property
    def is_infrastructure(self) -> bool:
        """The rollout says nothing about the policy: it is neither right nor wrong."""
        return self in (StopReason.TOOL_ERROR, StopReason.SAMPLER_ERROR)


@dataclass(frozen=True)
class ObservationPart:
    """A run of tokens; only passages are `cuttable` when room is short."""

    ids: tuple[int, ...]
    cuttable: bool = False


@dataclass(frozen=True)
class Observation:
    """The environment's reply as the policy sees it, tags and turn separators included."""

    parts: tuple[ObservationPart, ...]

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(chain.from_iterable(part.ids for part in self.parts))

    def __len__(self) -> int:
        return sum(len(part.ids) for part in self.parts)


@dataclass(frozen=True)
class Turn:
    """One turn of the policy.

    `own_ids` = `forced_ids` + `generated_ids` is what was parsed; spans index into it. Only `generated_ids` were
    sampled: only they carry log-probs, loss and advantage. `logprobs` is empty where the sampler told none; such a turn
    cannot be trained on. `note_ids` and `action_ids` are the ids
    that the note and the action take in a rebuilt context and in the note probe, tags included: those that were
    sampled; of a token that straddles an edge, ids of its part inside. `observation` is what the next turn sees.

    Raises:
        ValueError: a length does not fit; the message names the turn.
    """

    index: int
    prompt_ids: tuple[int, ...]
    generated_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop: GenerationStop
    parsed: ParsedTurn
    forced_ids: tuple[int, ...] = ()
    note_span: Span | None = None
    note_ids: tuple[int, ...] | None = None
    action_ids: tuple[int, ...] | None = None
    observation: Observation | None = None
    tool_error: str | None = None
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if self.logprobs and len(self.logprobs) != len(self.generated_ids):
            raise ValueError(
                f"turn {self.index}: {len(self.generated_ids)} generated ids but {len(self.logprobs)} log-probs"
            )
        own, span = len(self.own_ids), self.note_span
        if span is not None and not 0 <= span[0] < span[1] <= own:
            raise ValueError(f"turn {self.index}: note_span {span} lies outside its {own} own tokens")
        if (self.note_ids is not None) != (self.parsed.note_status is NoteStatus.OK):
            raise ValueError(f"turn {self.index}: note_ids {self.note_ids} with note {self.parsed.note_status}")

    @property
    def own_ids(self) -> tuple[int, ...]:
        return self.forced_ids + self.generated_ids


@dataclass(frozen=True)
class Trajectory:
    """One rollout of one question: all its turns, and how it ended.

    `turns` hold token ids: what the policy saw and wrote, and what the tools answered. `answer` is None if the agent
    gave none. `stop` says why the rollout ended; `error` is the message if a tool or server failed. `question_ids` is
    the prompt of turn 1, system prompt and question.

    Raises:
        ValueError: there is an answer but no turn, or turns are numbered out of order.
    """

    question_id: str
    rollout: int
    question_ids: tuple[int, ...]
    turns: tuple[Turn, ...]
    stop: StopReason
    answer: str | None = None
    error: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if [turn.index for turn in self.turns] != list(range(len(self.turns))):
            raise ValueError(f"question {self.question_id}: turns are numbered {[turn.index for turn in self.turns]}")
        if not self.turns and self.stop is StopReason.ANSWERED:
            raise ValueError(
                f"question {self.question_id}, rollout {self.rollout}: answered, but no model call was recorded; "
                "look at the agent loop that made it"
            )

    @property
    def tool_errors(self) -> int:
        return sum(turn.tool_error is not None for turn in self.turns)

    @property
    def is_error(self) -> bool:
        """Whether a tool or server failed: the rollout then has no score and is excluded from all statistics."""
        return self.stop.is_infrastructure or self.tool_errors > 0

    @property
    def generated_tokens(self) -> int:
        return sum(len(turn.generated_ids) for turn in self.turns)

    @property
    def peak_context_tokens(self) -> int:
        """Tokens of the longest context of one turn, including what was written in it."""
        return max((len(turn.prompt_ids) + len(turn.own_ids) for turn in self.turns), default=0)

    @property
    def total_tokens(self) -> int:
        """Length of the transcript in tokens: question, own tokens and tool results, each once."""
        observed = sum(len(turn.observation) for turn in self.turns if turn.observation)
        return len(self.question_ids) + sum(len(turn.own_ids) for turn in self.turns) + observed

    @property
    def processed_tokens(self) -> int:
        """Tokens read and written over all turns; a context counts again in each turn."""
        return sum(len(turn.prompt_ids) + len(turn.own_ids) for turn in self.turns)


@dataclass(frozen=True)
class Segment:
    """Where the generated tokens of a turn lie in a row: `row.ids[start:stop] == turn.generated_ids`."""

    turn: int
    start: int
    stop: int


@dataclass(frozen=True)
class Row:
    """One training sequence. Everything outside the segments is context: no loss, no advantage."""

    trajectory: int
    ids: tuple[int, ...]
    segments: tuple[Segment, ...]
    temperature: float = 1.0

    def __post_init__(self) -> None:
        for seg in self.segments:
            if not 0 < seg.start <= seg.stop <= len(self.ids):
                raise ValueError(f"turn {seg.turn}: segment [{seg.start}, {seg.stop}) in a row of {len(self.ids)} ids")

    @property
    def generated_tokens(self) -> int:
        return sum(seg.stop - seg.start for seg in self.segments)

    def spread(self, values_by_turn: Mapping[int, Sequence[float]]) -> list[float]:
        """Per-turn values `[turn][generated]` laid out over the row `[tokens]`; 0 outside the segments."""
        out = [0.0] * len(self.ids)
        for seg in self.segments:
            values = values_by_turn[seg.turn]
            if len(values) != seg.stop - seg.start:
                raise ValueError(f"turn {seg.turn}: {len(values)} values for {seg.stop - seg.start} generated tokens")
            out[seg.start : seg.stop] = values
        return out


def rows_of(trajectory: Trajectory, index: int = 0) -> list[Row]:
    """The training rows of a trajectory, `index` being its place in the batch.

    A turn joins the row before it only when its prompt extends that row token by token, so a full-history rollout is
    one row and a rebuilt context starts a new one. No turn is dropped.
    """
    rows: list[Row] = []
    for turn in trajectory.turns:
        last = rows[-1] if rows else None
        prefix = turn.prompt_ids + turn.forced_ids
        start = len(prefix)
        segment = Segment(turn.index, start, start + len(turn.generated_ids))
        joins = last is not None and last.temperature == turn.temperature and prefix[: len(last.ids)] == last.ids
        segments = (*last.segments, segment) if joins and last else (segment,)
        row = Row(index, prefix + turn.generated_ids, segments, turn.temperature)
        if joins:
            rows[-1] = row
        else:
            rows.append(row)
    return rows
