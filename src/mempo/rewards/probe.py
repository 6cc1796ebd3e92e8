"""The probe: a fixed continuation that asks the policy for the gold answer, and which of its tokens are the answer.

    "\\n<think>\\n" + thought + "\\n</think>\\n<answer>\\n" + gold + "\\n</answer>"

(MemPO, arXiv 2603.00680.) Gold tokens are found by character offsets, so any tokenizer will do: a token that holds at
least one character of the answer is a gold token, also when it holds a neighbouring character too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from mempo.config.rewards import ProbeSettings
from mempo.rollout.question import Question


class NoSignal(StrEnum):
    """Why a note has no memory reward. Such a note stays out of every pool and is counted under this name."""

    NO_GOLD = "no_gold"  # the question has nothing to predict
    EMPTY_GOLD = "empty_gold"  # it has, but no token of the probe holds any of it
    LONG_GOLD = "long_gold"  # more gold tokens than `probe.max_gold_tokens`
    TOO_LONG = "too_long"  # context and probe together exceed what the policy can see
    ERROR = "error"  # infrastructure failed somewhere in the rollout
    LOST = "lost"  # the note that the turn should have is not there, or cannot be used
    UNSCORED = "unscored"  # the rollout has no outcome score, so it does not count
    NAN = "nan"  # a log-prob is not a finite number
    EMPTY_CHOICE = "empty_choice"  # no gold token passed the threshold


@dataclass(frozen=True)
class Probe:
    """`ids`: the continuation. `gold`: ascending positions in `ids` whose log-probs make P(context).

    `objectives` `[gold]`: the objective of each of them; a token that holds some of two belongs to the first.
    """

    ids: tuple[int, ...]
    gold: tuple[int, ...]
    objectives: tuple[int, ...] = ()


class EncodedText(Protocol):
    """`offsets[i]`: the characters `[start, end)` that `ids[i]` stands for, in the concatenation of the pieces."""

    @property
    def ids(self) -> tuple[int, ...]: ...
    @property
    def offsets(self) -> tuple[tuple[int, int], ...]: ...


class ProbeTokenizer(Protocol):
    """What the probe needs of a tokenizer: pieces `(text, trusted)`; untrusted text yields no added-vocabulary id."""

    def encode_mixed(self, pieces: Sequence[tuple[str, bool]]) -> EncodedText: ...


def build_probe(tokenizer: ProbeTokenizer, question: Question, settings: ProbeSettings) -> Probe | None:
    """The probe of a question; None when it can give no signal (`probe_or_reason` says why)."""
    probe = probe_or_reason(tokenizer, question, settings)
    return probe if isinstance(probe, Probe) else None


def probe_or_reason(tokenizer: ProbeTokenizer, question: Question, settings: ProbeSettings) -> Probe | NoSignal:
    """The probe of a question, or why there is none: `no_gold`, `empty_gold` or `long_gold`."""
    answers = question.probe_objectives
    if not answers:
        return NoSignal.NO_GOLD
    if not "".join(answers).strip():
        return NoSignal.EMPTY_GOLD
    pieces, gold_spans = _pieces(answers, settings)
    encoded = tokenizer.encode_mixed(pieces)
    owners = {
        i: next(objective for objective, span in gold_spans if _overlaps(offsets, span))
        for i, offsets in enumerate(encoded.offsets)
        if any(_overlaps(offsets, span) for _, span in gold_spans)
    }
    gold = tuple(owners)
    if not gold:
        return NoSignal.EMPTY_GOLD
    if len(gold) > settings.max_gold_tokens:
        return NoSignal.LONG_GOLD
    return Probe(tuple(encoded.ids), gold, tuple(owners.values()))


GoldSpan = tuple[int, tuple[int, int]]  # the objective, and the characters [start, end)


def _pieces(answers: Sequence[str], settings: ProbeSettings) -> tuple[list[tuple[str, bool]], list[GoldSpan]]:
    """The text in pieces, and the spans of the gold. Answers come from data files: they are not trusted."""
    pieces = [(f"\n<think>\n{settings.thought}\n</think>\n<answer>\n", True)]
    spans: list[GoldSpan] = []
    position = len(pieces[0][0])
    for i, answer in enumerate(answers):
        if i:
            pieces.append((settings.joiner, True))
            if settings.separators_are_gold:
                spans.append((i, (position, position + len(settings.joiner))))
            position += len(settings.joiner)
        pieces.append((answer, False))
        spans.append((i, (position, position + len(answer))))
        position += len(answer)
    pieces.append(("\n</answer>", True))
    return [piece for piece in pieces if piece[0]], spans


def _overlaps(token: tuple[int, int], span: tuple[int, int]) -> bool:
    return token[0] < span[1] and span[0] < token[1]
