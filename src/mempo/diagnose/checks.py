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
class Advice:
    """`why` it may be so, and what may help, the most likely first. Where a remedy names a setting with its value
    (`memory.pool=turn`), it is offered only to runs that have another one; of several the first decides."""

    why: str
    remedies: tuple[str, ...]


@dataclass(frozen=True)
class Check:
    """One row. `path`: where the value stands in the report. Healthy: `low` <= value <= `high`; `below` and `above` are
    for values that are not. `trend`: the value is shown as "start → end" of that curve. `count`: the path of how many
    things it rests on; fewer than `MIN_COUNT` are too few to judge. `excused`: what makes a value outside the range
    harmless. `matters`: whether the row has anything to say in this run."""

    key: str
    label: str
    path: str
    meaning: str
    low: float | None = None
    high: float | None = None
    below: Advice | None = None
    above: Advice | None = None
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


HOLD = "rl.loss.kl=k3 with rl.loss.kl_coef=0.001 holds the policy near where it started"
WEAKER = (
    "memory.gate=when_group_varies pays for notes only where scores differ",
    "memory.normalize_std=false blows small differences up no more",
    "lower memory.weight",
)
"""What is left when the signal itself is as it should be: let it weigh less."""

TRAINING = (
    Check(
        "score",
        "score, start → end",
        "trend.score.gain",
        "outcome over training",
        low=0.02,
        below=Advice(
            "nothing was learnt",
            ("if it began at 0, train SFT longer or ask for fewer objectives", "if it fell, lower rl.optim.lr"),
        ),
        trend="score",
        healthy="rises, or ≥ 0.9",
        excused=_score_is_high,
    ),
    Check(
        "format",
        "format kept",
        "format_ok",
        "a broken format scores 0",
        low=0.9,
        below=Advice(
            "see format/<rule> in metrics.jsonl",
            ("more SFT", HOLD, "lower rl.optim.lr"),
        ),
        form=SHARE,
    ),
    Check(
        "turns",
        "turns, start → end",
        "trend.turns.ratio",
        "turns until the answer",
        low=0.7,
        high=1.5,
        below=Advice("answering early escapes punished late notes", ("memory.pool=turn", *WEAKER)),
        above=Advice("it searches to the limit", ("memory.threshold=none", "lower limits.max_turns")),
        trend="turns",
        healthy="× 0.7 to 1.5",
    ),
    Check(
        "note_tokens",
        "note tokens, start → end",
        "trend.note_tokens.ratio",
        "how long notes are",
        low=0.5,
        high=3.0,
        below=Advice(
            "read them: short notes may be good ones",
            ("memory.threshold=none", "memory.pool=turn", "memory.length_penalty=0 makes long notes free"),
        ),
        above=Advice("long notes are free", ("raise memory.length_penalty", "a lower limits.max_note_tokens")),
        trend="note_tokens",
        healthy="× 0.5 to 3",
    ),
)
CONTROL = (
    Check(
        "beats_other",
        "notes that beat another's",
        "control.beats_other",
        "P(note) > P(same length, other question)",
        low=0.8,
        below=Advice(
            "the probe does not read the notes",
            ("raise sft.probe_share", "give memory.probe.thought the sentence that the model was trained with"),
        ),
        form=SHARE,
        count="control.notes",
    ),
    Check(
        "other_gain",
        "P(note) − P(other's note)",
        "control.other_gain",
        "what its content adds, length apart",
        low=0.02,
        below=Advice(
            "short contexts alone predict the answer",
            ("raise sft.probe_share", "memory.baseline=previous_note pays only for what a note adds"),
        ),
        form="{:+.3f}",
    ),
    Check(
        "empty_gain",
        "P(note) − P(empty note)",
        "control.empty_gain",
        "what a note adds to none",
        low=0.02,
        below=Advice(
            "the answers are known without notes, or the notes hold none of them",
            ("ask rarer facts", "read the notes: see the answers that notes hold"),
        ),
        form="{:+.3f}",
    ),
    Check(
        "history_gain",
        "P(note) − P(history)",
        "control.history_gain",
        "0: lossless; above: easier to read",
        low=-0.1,
        below=Advice(
            "notes lose what the history holds",
            ("raise memory.weight", "put more complete notes into SFT (sft.expert.lossless_share)"),
        ),
        form="{:+.3f}",
    ),
)
SIGNAL = (
    Check(
        "gold_kept_mem",
        "gold tokens kept, note",
        "gold_kept.mem",
        "tokens past the threshold in P(mem)",
        low=0.9,
        below=Advice(
            "the threshold hides the tokens that notes got wrong", ("memory.threshold=none, and watch p_mem_raw",)
        ),
        form=SHARE,
        matters=_has_threshold,
    ),
    Check(
        "gold_kept_base",
        "gold tokens kept, baseline",
        "gold_kept.base",
        "tokens past the threshold in P(base)",
        low=0.9,
        below=Advice(
            "the sides are means over different tokens",
            ("memory.threshold=none", "memory.threshold=both takes the same tokens of either side"),
        ),
        form=SHARE,
        matters=_has_threshold,
    ),
    Check(
        "silent",
        "notes without a reward",
        "gold_kept.silent_share",
        "notes that could not be judged",
        high=0.05,
        above=Advice(
            "gold_kept.silent in the JSON has the reasons",
            ("too_long wants a larger window", "empty_choice wants memory.threshold=none"),
        ),
        form=SHARE,
    ),
    Check(
        "drift",
        "drift of credit over turns",
        "drift.given",
        "highest less lowest mean credit of a turn",
        high=0.3,
        above=Advice("the signal praises early or late turns, not notes", ("memory.pool=turn", *WEAKER)),
    ),
    Check(
        "memory_share",
        "memory's share of credit",
        "credit.memory_share",
        "part of all |credit| paid for notes",
        low=0.05,
        high=0.7,
        below=Advice("notes hardly count beside the outcome", ("raise memory.weight",)),
        above=Advice("notes count more than the outcome", WEAKER),
        form=SHARE,
        matters=_pays_for_notes,
    ),
    Check(
        "memory_only",
        "groups where only notes pay",
        "credit.memory_only",
        "equal scores: only the dense signal",
        high=0.6,
        above=Advice(
            "scores do not differ",
            (
                "mix data.objectives",
                "reward.score=mean_em pays for every part",
                "more rl.rollouts_per_question",
                "memory.gate=when_group_varies",
            ),
        ),
        form=SHARE,
        matters=_pays_for_notes,
    ),
    Check(
        "r_completeness",
        "r with completeness",
        "correlation.completeness",
        "does r rank notes by answers they hold?",
        low=0.2,
        below=Advice(
            "r does not pay complete notes",
            ("memory.threshold=none", "memory.baseline=none", "see the control rows", "lower memory.weight till then"),
        ),
        form="{:+.2f}",
        count="correlation.completeness_notes",
    ),
    Check(
        "complete_punished",
        "complete notes punished",
        "correlation.complete_punished",
        "negative credit beside lesser notes",
        high=0.25,
        above=Advice(
            "the best notes lose credit",
            ("memory.pool=turn", "memory.threshold=none", "memory.baseline=none", *WEAKER),
        ),
        form=SHARE,
    ),
    Check(
        "alike",
        "credit for wording alone",
        "correlation.alike_share",
        "paid where notes hold equally much",
        high=0.7,
        above=Advice("little is left to learn by it", ("stop", *WEAKER)),
        form=SHARE,
    ),
    Check(
        "r_outcome",
        "r with the outcome",
        "correlation.outcome",
        "do notes of good rollouts have a higher r?",
        low=-0.1,
        below=Advice("r works against the outcome", ("memory.threshold=none", "see the control rows", *WEAKER)),
        form="{:+.2f}",
        count="correlation.outcome_notes",
    ),
    Check(
        "r_length",
        "r with note length",
        "correlation.length_alike",
        "among notes that hold equally much",
        low=-0.5,
        high=0.5,
        below=Advice(
            "brevity is paid", ("see the answers that notes hold", "memory.length_penalty=0 makes long notes free")
        ),
        above=Advice("length is paid", ("raise memory.length_penalty", "memory.reward=compression")),
        form="{:+.2f}",
        count="correlation.length_alike_notes",
    ),
)
NOTES = (
    Check(
        "unheld",
        "facts that no tool said",
        "faithfulness.unheld",
        "names and values from nowhere",
        high=0.1,
        above=Advice(
            "notes invent or garble: read the examples in diagnosis.md",
            (HOLD, "more SFT", "lower memory.weight"),
        ),
        form=SHARE,
        count="faithfulness.facts",
    ),
    Check(
        "gold_kept_notes",
        "seen answers that notes hold",
        "faithfulness.gold_kept",
        "of the answers that tools showed so far",
        low=0.8,
        below=Advice("notes drop what was found", ("raise memory.weight", "raise sft.expert.lossless_share")),
        form=SHARE,
        count="faithfulness.gold_seen",
    ),
    Check(
        "gold_lost",
        "answers noted, lost again",
        "faithfulness.gold_lost",
        "an earlier note held them, this one not",
        high=0.1,
        above=Advice(
            "notes forget on the way",
            ("memory.baseline=previous_note charges for the loss", "raise memory.lookahead.k", "raise memory.weight"),
        ),
        form=SHARE,
        count="faithfulness.gold_noted_before",
    ),
    Check(
        "copies",
        "copies of the last note",
        "repetition.copies",
        "notes equal to the one before",
        high=0.3,
        above=Advice(
            "copying earns credit",
            ("memory.baseline=previous_note pays only for what a note adds", "lower memory.weight"),
        ),
        form=SHARE,
    ),
    Check(
        "templates",
        "notes shared by questions",
        "repetition.templates",
        "word for word in another question too",
        high=0.2,
        above=Advice(
            "one note for all questions: see the control rows",
            (HOLD, "lower memory.weight", "lower rl.optim.lr"),
        ),
        form=SHARE,
    ),
    Check(
        "distinct_notes",
        "variety of notes in a group",
        "repetition.distinct_notes",
        "0: last notes all alike; fine at score ≥ 0.9",
        low=0.05,
        below=Advice(
            "rollouts are alike, so nothing tells them apart",
            (HOLD, "a larger rl.loss.kl_coef", "lower rl.optim.lr"),
        ),
        excused=_score_is_high,
    ),
    Check(
        "distinct_queries",
        "variety of searches in a group",
        "repetition.distinct_queries",
        "0: queries all alike; fine if notes vary",
        low=0.05,
        below=Advice("all rollouts do and note the same", (HOLD, "a larger rl.loss.kl_coef", "lower rl.optim.lr")),
        excused=lambda report: _notes_vary(report) or _score_is_high(report),
    ),
    Check(
        "shared_queries",
        "queries shared by questions",
        "repetition.shared_queries",
        "asked elsewhere without cause",
        high=0.3,
        above=Advice("one query for all questions: look at the format and the tools", ("more SFT", HOLD)),
        form=SHARE,
    ),
    Check(
        "compression",
        "compression of notes",
        "repetition.compression_across",
        "zlib, one a question, over the questions'",
        high=2.0,
        above=Advice("notes say the same of everything", ("see the notes shared by questions", "read the examples")),
        count="rollouts.groups",
    ),
)
CHECKS: tuple[Check, ...] = (*TRAINING, *CONTROL, *SIGNAL, *NOTES)
