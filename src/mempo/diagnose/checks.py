"""The table of checks: what is measured, which values are healthy, what it means, and what to change when it is not.

The thresholds are rules of thumb, taken from toy runs and from what the metrics mean; docs/diagnose.md says more on
each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Report = Mapping[str, Any]
Advice = tuple[str, ...]
"""Why it may be so, then what may help, the most likely first. Where a remedy names a setting with its value
(`memory.pool=turn`), it is offered only to runs that have another value; of several settings the first decides."""

SHARE, PLAIN, SIGNED, FINE = "{:.0%}", "{:.2f}", "{:+.2f}", "{:+.3f}"


@dataclass(frozen=True)
class Check:
    """One row. `path`: where the value is in the report. Healthy: `low` <= value <= `high`; `below` and `above` are for
    values that are not. `healthy`: the range in words, where numbers do not say it. `trend`: the value is shown as
    "start → end" of that curve. `count`: the path of how many things it rests on; fewer than `MIN_COUNT` are too few.
    `excused`: what makes a value outside the range harmless. `matters`: whether the row applies to this run."""

    key: str
    label: str
    path: str
    meaning: str
    form: str = PLAIN
    low: float | None = None
    high: float | None = None
    below: Advice | None = None
    above: Advice | None = None
    healthy: str = ""
    trend: str | None = None
    count: str | None = None
    excused: Callable[[Report], bool] = lambda report: False
    matters: Callable[[Report], bool] = lambda report: True

    @property
    def range(self) -> str:
        low, high = (None if bound is None else self.form.format(bound) for bound in (self.low, self.high))
        both = f"{low} to {high}" if low is not None and high is not None else None
        return self.healthy or both or (f"≥ {low}" if low is not None else f"≤ {high}")


def _has_threshold(report: Report) -> bool:
    return report["settings"]["threshold"] != "none"


def _pays_for_notes(report: Report) -> bool:
    return report["settings"]["memory_signal"] and report["settings"]["weight"] > 0


def _score_is_high(report: Report) -> bool:
    end = report["trend"]["score"]["end"]
    return end is not None and end >= 0.9


def _is_varied(report: Report) -> bool:
    notes = report["variety"]["distinct_notes"]
    return _score_is_high(report) or (notes is not None and notes >= 0.05)


HOLD = "rl.loss.kl=k3 with rl.loss.kl_coef=0.001 keeps the policy near where it started"
WEAKER = (
    "memory.gate=when_group_varies pays for notes only where scores differ",
    "memory.normalize_std=false no longer scales small differences up",
    "lower memory.weight",
)
"""What is left when the signal itself is as it should be: give it less weight."""
NO_THRESHOLD, BY_TURN = "memory.threshold=none", "memory.pool=turn"
PROBE, WEIGHT, LOWER_LR = "raise sft.probe_share", "raise memory.weight", "lower rl.optim.lr"
FREE_LENGTH = "memory.length_penalty=0 makes long notes free"
ALIKE = (HOLD, "a larger rl.loss.kl_coef", LOWER_LR)

# fmt: off
CHECKS: tuple[Check, ...] = (
    # Training
    Check("score", "score, start → end", "trend.score.gain", "outcome over training",
          low=0.02, healthy="rises, or ≥ 0.9", trend="score", excused=_score_is_high,
          below=("nothing was learned", "if it began at 0, train SFT longer or ask for fewer objectives",
                 f"if it fell, {LOWER_LR}")),
    Check("format", "format kept", "format_ok", "a broken format scores 0", SHARE,
          low=0.9, below=("see format/<rule> in metrics.jsonl", "more SFT", HOLD, LOWER_LR)),
    Check("turns", "turns, start → end", "trend.turns.ratio", "turns until the answer",
          low=0.7, high=1.5, healthy="× 0.7 to 1.5", trend="turns",
          below=("answering early avoids the penalty on late notes", BY_TURN, *WEAKER),
          above=("it searches up to the limit", NO_THRESHOLD, "lower limits.max_turns")),
    Check("note_tokens", "note tokens, start → end", "trend.note_tokens.ratio", "how long notes are",
          low=0.5, high=3.0, healthy="× 0.5 to 3", trend="note_tokens",
          below=("read them: short notes may be good ones", NO_THRESHOLD, BY_TURN, FREE_LENGTH),
          above=("long notes are free", "raise memory.length_penalty", "a lower limits.max_note_tokens")),
    # Control: does the policy read the note?
    Check("beats_other", "notes that beat another's", "control.beats_other", "P(note) > P(same length, other question)",
          SHARE, low=0.8, count="control.notes",
          below=("the probe does not read the notes", PROBE,
                 "give memory.probe.thought the sentence that the model was trained with")),
    Check("other_gain", "P(note) − P(other's note)", "control.other_gain", "what its content adds, length apart", FINE,
          low=0.02, below=("short contexts alone predict the answer", PROBE,
                           "memory.baseline=previous_note pays only for what a note adds")),
    Check("empty_gain", "P(note) − P(empty note)", "control.empty_gain", "what a note adds to none", FINE,
          low=0.02, below=("the answers are known without notes, or the notes hold none of them", "ask rarer facts",
                           "read the notes: see the answers that notes hold")),
    Check("history_gain", "P(note) − P(history)", "control.history_gain", "0: lossless; above: easier to read", FINE,
          low=-0.1, below=("notes lose what the history holds", WEIGHT,
                           "put more complete notes into SFT (sft.expert.lossless_share)")),
    # Signal
    Check("gold_kept_mem", "gold tokens kept, note", "gold_tokens.mem", "tokens past the threshold in P(mem)", SHARE,
          low=0.9, matters=_has_threshold,
          below=("the threshold hides the tokens that notes got wrong", f"{NO_THRESHOLD}, and watch p_mem_raw")),
    Check("gold_kept_baseline", "gold tokens kept, baseline", "gold_tokens.baseline",
          "tokens past the threshold in P(baseline)", SHARE, low=0.9, matters=_has_threshold,
          below=("the two sides are means over different tokens", NO_THRESHOLD,
                 "memory.threshold=both takes the same tokens on both sides")),
    Check("silent", "notes without a reward", "gold_tokens.silent_share", "notes that could not be scored", SHARE,
          high=0.05, above=("gold_tokens.silent in the JSON has the reasons", "too_long needs a larger window",
                            f"empty_choice needs {NO_THRESHOLD}")),
    Check("drift", "drift of advantages over turns", "drift.given", "highest less lowest mean of a turn",
          high=0.3, above=("the signal rewards early or late turns, not notes", BY_TURN, *WEAKER)),
    Check("memory_share", "memory's share of advantages", "advantages.memory_share", "part of all |A| that notes get",
          SHARE, low=0.05, high=0.7, matters=_pays_for_notes,
          below=("notes hardly count beside the outcome", WEIGHT),
          above=("notes count more than the outcome", *WEAKER)),
    Check("memory_only", "groups where only notes pay", "advantages.memory_only", "equal scores: only the dense signal",
          SHARE, high=0.6, matters=_pays_for_notes,
          above=("scores do not differ", "mix data.objectives", "reward.score=mean_em pays for every part",
                 "more rl.rollouts_per_question", "memory.gate=when_group_varies")),
    Check("r_completeness", "r with completeness", "correlation.completeness",
          "does r rank notes by answers they hold?", SIGNED, low=0.2, count="correlation.completeness_notes",
          below=("r does not pay for complete notes", NO_THRESHOLD, "memory.baseline=none", "see the control rows",
                 "lower memory.weight until then")),
    Check("complete_punished", "complete notes punished", "correlation.complete_punished",
          "negative advantage beside lesser notes", SHARE, high=0.25,
          above=("the best notes get negative advantages", BY_TURN, NO_THRESHOLD, "memory.baseline=none", *WEAKER)),
    Check("alike", "advantages for wording alone", "correlation.alike_share", "paid where notes hold equally much",
          SHARE, high=0.7, above=("there is little left to learn from it", "stop", *WEAKER)),
    Check("r_outcome", "r with the outcome", "correlation.outcome", "do notes of good rollouts have a higher r?",
          SIGNED, low=-0.1, count="correlation.outcome_notes",
          below=("r works against the outcome", NO_THRESHOLD, "see the control rows", *WEAKER)),
    Check("r_length", "r with note length", "correlation.length_alike", "among notes that hold equally much", SIGNED,
          low=-0.5, high=0.5, count="correlation.length_alike_notes",
          below=("short notes are paid for", "see the answers that notes hold", FREE_LENGTH),
          above=("long notes are paid for", "raise memory.length_penalty", "memory.reward=compression")),
    # Notes
    Check("unheld", "facts that no tool said", "notes.unheld", "names and values from nowhere", SHARE,
          high=0.1, count="notes.facts",
          above=("notes invent or garble: read the examples in diagnosis.md", HOLD, "more SFT", "lower memory.weight")),
    Check("gold_kept_notes", "seen answers that notes hold", "notes.gold_kept",
          "of the answers that tools showed so far", SHARE, low=0.8, count="notes.gold_seen",
          below=("notes drop what was found", WEIGHT, "raise sft.expert.lossless_share")),
    Check("gold_lost", "answers noted, lost again", "notes.gold_lost", "an earlier note held them, this one not", SHARE,
          high=0.1, count="notes.gold_noted_before",
          above=("notes forget along the way", "memory.baseline=previous_note charges for the loss",
                 "raise memory.lookahead.k", WEIGHT)),
    Check("copies", "copies of the last note", "notes.copies", "notes equal to the one before", SHARE, high=0.3,
          above=("copying is rewarded", "memory.baseline=previous_note pays only for what a note adds",
                 "lower memory.weight")),
    Check("templates", "notes shared by questions", "notes.templates", "word for word in another question too", SHARE,
          high=0.2, above=("one note for all questions: see the control rows", HOLD, "lower memory.weight", LOWER_LR)),
    Check("distinct_notes", "variety of notes in a group", "variety.distinct_notes",
          "0: last notes all alike; fine at score ≥ 0.9", low=0.05, excused=_score_is_high,
          below=("rollouts are alike, so nothing sets them apart", *ALIKE)),
    Check("distinct_queries", "variety of searches in a group", "variety.distinct_queries",
          "0: queries all alike; fine if notes vary", low=0.05, excused=_is_varied,
          below=("all rollouts do and note the same", *ALIKE)),
    Check("shared_queries", "queries shared by questions", "variety.shared_queries",
          "asked for a question that lacks them", SHARE, high=0.3,
          above=("one query for all questions: look at the format and the tools", "more SFT", HOLD)),
    Check("compression", "compression of notes", "variety.compression_across",
          "zlib, one a question, over the questions'", high=2.0, count="rollouts.groups",
          above=("notes say the same about everything", "see the notes shared by questions", "read the examples")),
)
# fmt: on
