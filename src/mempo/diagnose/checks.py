"""What is healthy, and what to change when it is not: the rows of the table.

The bounds are rules of thumb, taken from toy runs and from what the measures mean; docs/diagnose.md says more on each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Report = Mapping[str, Any]
SHARE = "{:.0%}"
MIN_COUNT = 8


@dataclass(frozen=True)
class Check:
    """One row. `path`: where the value stands in the report. Healthy: `low` <= value <= `high`. `trend`: the value is
    shown as "start → end" of that curve. `count`: the path of how many things it rests on; fewer than `MIN_COUNT` are
    too few to judge. `excused`: what makes a value outside the range harmless. `matters`: whether the row has anything
    to say in this run."""

    key: str
    label: str
    path: str
    meaning: str
    change: str
    low: float | None = None
    high: float | None = None
    form: str = "{:.2f}"
    trend: str | None = None
    healthy: str = ""
    count: str | None = None
    excused: Callable[[Report], bool] = lambda report: False
    matters: Callable[[Report], bool] = lambda report: True

    @property
    def range(self) -> str:
        if self.healthy:
            return self.healthy
        low, high = (None if bound is None else self.form.format(bound) for bound in (self.low, self.high))
        if low is not None and high is not None:
            return f"{low} to {high}"
        return f"≥ {low}" if low is not None else f"≤ {high}"


def _has_threshold(report: Report) -> bool:
    return report["settings"]["threshold"] != "none"


def _pays_for_notes(report: Report) -> bool:
    return report["settings"]["memory_signal"] and report["settings"]["weight"] > 0


def _score_is_high(report: Report) -> bool:
    end = report["trend"]["score"]["end"]
    return end is not None and end >= 0.9


def _notes_vary(report: Report) -> bool:
    variety = report["repetition"]["distinct_notes"]
    return variety is not None and variety >= 0.05


def _share(
    key: str,
    label: str,
    path: str,
    meaning: str,
    change: str,
    low: float | None = None,
    high: float | None = None,
    count: str | None = None,
    matters: Callable[[Report], bool] = lambda report: True,
) -> Check:
    return Check(key, label, path, meaning, change, low, high, SHARE, count=count, matters=matters)


TRAINING = (
    Check(
        "score",
        "score, start → end",
        "trend.score.gain",
        "outcome over training",
        "if it began at 0, train SFT longer or ask for fewer objectives; if it fell, lower rl.optim.lr.",
        low=0.02,
        trend="score",
        healthy="rises, or ≥ 0.9",
        excused=_score_is_high,
    ),
    _share(
        "format",
        "format kept",
        "format_ok",
        "a broken format scores 0",
        "see format/<rule> in metrics.jsonl; more SFT, a KL term (rl.loss.kl=k3) or a lower rl.optim.lr.",
        low=0.9,
    ),
    Check(
        "turns",
        "turns, start → end",
        "trend.turns.ratio",
        "turns until the answer",
        "fewer: answering early escapes punished late notes, set memory.pool=turn; more: it searches to the limit, set "
        "memory.threshold=none.",
        low=0.7,
        high=1.5,
        trend="turns",
        healthy="× 0.7 to 1.5",
    ),
    Check(
        "note_tokens",
        "note tokens, start → end",
        "trend.note_tokens.ratio",
        "how long notes are",
        "growing: long notes are free, set memory.length_penalty; shrinking: read them, and check memory.threshold and "
        "memory.pool.",
        low=0.5,
        high=3.0,
        trend="note_tokens",
        healthy="× 0.5 to 3",
    ),
)
CONTROL = (
    _share(
        "beats_other",
        "notes that beat another's",
        "control.beats_other",
        "P(note) > P(same length, other question)",
        "the probe does not read the notes: raise sft.probe_share, or give memory.probe.thought the sentence that the "
        "model was trained with.",
        low=0.8,
        count="control.notes",
    ),
    Check(
        "other_gain",
        "P(note) − P(other's note)",
        "control.other_gain",
        "what its content adds, length apart",
        "short contexts alone predict the answer: raise sft.probe_share, or set memory.baseline=previous_note.",
        low=0.02,
        form="{:+.3f}",
    ),
    Check(
        "empty_gain",
        "P(note) − P(empty note)",
        "control.empty_gain",
        "what a note adds to none",
        "the answers are known without notes (ask rarer facts), or the notes hold none of them.",
        low=0.02,
        form="{:+.3f}",
    ),
    Check(
        "history_gain",
        "P(note) − P(history)",
        "control.history_gain",
        "0: lossless; above: easier to read",
        "notes lose what the history holds: raise memory.weight, or put more complete notes into SFT "
        "(sft.expert.lossless_share).",
        low=-0.1,
        form="{:+.3f}",
    ),
)
SIGNAL = (
    Check(
        "gold_kept_mem",
        "gold tokens kept, note",
        "gold_kept.mem",
        "tokens past the threshold in P(mem)",
        "the threshold hides the tokens that notes got wrong: set memory.threshold=none, and watch p_mem_raw.",
        low=0.9,
        form=SHARE,
        matters=_has_threshold,
    ),
    Check(
        "gold_kept_base",
        "gold tokens kept, baseline",
        "gold_kept.base",
        "tokens past the threshold in P(base)",
        "the sides are means over different tokens: set memory.threshold=none, or both, or either.",
        low=0.9,
        form=SHARE,
        matters=_has_threshold,
    ),
    _share(
        "silent",
        "notes without a reward",
        "gold_kept.silent_share",
        "notes that could not be judged",
        "gold_kept.silent in the JSON has the reasons: too_long wants a larger window, empty_choice "
        "memory.threshold=none.",
        high=0.05,
    ),
    Check(
        "drift",
        "drift of credit over turns",
        "drift.given",
        "highest less lowest mean credit of a turn",
        "the signal praises early or late turns, not notes: set memory.pool=turn.",
        high=0.3,
    ),
    _share(
        "memory_share",
        "memory's share of credit",
        "credit.memory_share",
        "part of all |credit| paid for notes",
        "too high: memory.gate=when_group_varies or a lower memory.weight; too low: raise memory.weight.",
        low=0.05,
        high=0.7,
        matters=_pays_for_notes,
    ),
    _share(
        "memory_only",
        "groups where only notes pay",
        "credit.memory_only",
        "equal scores: only the dense signal",
        "set memory.gate=when_group_varies, and make scores differ: mix data.objectives, or reward.score=mean_em.",
        high=0.6,
        matters=_pays_for_notes,
    ),
    Check(
        "r_completeness",
        "r with completeness",
        "correlation.completeness",
        "does r rank notes by answers they hold?",
        "r does not pay complete notes: set memory.threshold=none and memory.baseline=none; see the control rows.",
        low=0.2,
        form="{:+.2f}",
        count="correlation.completeness_notes",
    ),
    _share(
        "complete_punished",
        "complete notes punished",
        "correlation.complete_punished",
        "negative credit beside lesser notes",
        "the best notes lose credit: set memory.pool=turn, memory.threshold=none, memory.baseline=none.",
        high=0.25,
    ),
    _share(
        "alike",
        "credit for wording alone",
        "correlation.alike_share",
        "paid where notes hold equally much",
        "little is left to learn by it: stop, lower memory.weight, or set memory.normalize_std=false.",
        high=0.7,
    ),
    Check(
        "r_outcome",
        "r with the outcome",
        "correlation.outcome",
        "do notes of good rollouts have a higher r?",
        "r works against the outcome: check memory.threshold and the control rows; meanwhile "
        "memory.gate=when_group_varies.",
        low=-0.1,
        form="{:+.2f}",
        count="correlation.outcome_notes",
    ),
    Check(
        "r_length",
        "r with note length",
        "correlation.length_alike",
        "among notes that hold equally much",
        "length is paid: set memory.length_penalty, or memory.reward=compression; negative: brevity is paid, see the "
        "answers that notes hold.",
        low=-0.5,
        high=0.5,
        form="{:+.2f}",
        count="correlation.length_alike_notes",
    ),
)
NOTES = (
    _share(
        "unheld",
        "facts that no tool said",
        "faithfulness.unheld",
        "names and values from nowhere",
        "notes invent or garble: a KL term (rl.loss.kl=k3) or more SFT; read the examples in diagnosis.md.",
        high=0.1,
        count="faithfulness.facts",
    ),
    _share(
        "gold_kept_notes",
        "seen answers that notes hold",
        "faithfulness.gold_kept",
        "of the answers that tools showed so far",
        "notes drop what was found: raise memory.weight, or sft.expert.lossless_share.",
        low=0.8,
        count="faithfulness.gold_seen",
    ),
    _share(
        "gold_lost",
        "answers noted, lost again",
        "faithfulness.gold_lost",
        "an earlier note held them, this one not",
        "notes forget on the way: memory.lookahead.k=1, or memory.baseline=previous_note, which charges for the loss.",
        high=0.1,
        count="faithfulness.gold_noted_before",
    ),
    _share(
        "copies",
        "copies of the last note",
        "repetition.copies",
        "notes equal to the one before",
        "copying earns credit: set memory.baseline=previous_note, so that only what a note adds is paid.",
        high=0.3,
    ),
    _share(
        "templates",
        "notes shared by questions",
        "repetition.templates",
        "word for word in another question too",
        "one note for all questions: see the control rows; a KL term, or a lower memory.weight.",
        high=0.2,
    ),
    Check(
        "distinct_notes",
        "variety of notes in a group",
        "repetition.distinct_notes",
        "0: last notes all alike; fine at score ≥ 0.9",
        "rollouts are alike, so nothing tells them apart: a larger rl.loss.kl_coef or a lower rl.optim.lr.",
        low=0.05,
        excused=_score_is_high,
    ),
    Check(
        "distinct_queries",
        "variety of searches in a group",
        "repetition.distinct_queries",
        "0: queries all alike; fine if notes vary",
        "all rollouts do and note the same: a larger rl.loss.kl_coef or a lower rl.optim.lr.",
        low=0.05,
        excused=lambda report: _notes_vary(report) or _score_is_high(report),
    ),
    _share(
        "shared_queries",
        "queries shared by questions",
        "repetition.shared_queries",
        "asked elsewhere without cause",
        "one query for all questions: more SFT or a KL term; look at the format and the tools.",
        high=0.3,
    ),
    Check(
        "compression",
        "compression of notes",
        "repetition.compression_across",
        "zlib, one a question, over the questions'",
        "notes say the same of everything: see the notes shared by questions, and read the examples.",
        high=2.0,
        count="rollouts.groups",
    ),
)
CHECKS: tuple[Check, ...] = (*TRAINING, *CONTROL, *SIGNAL, *NOTES)
