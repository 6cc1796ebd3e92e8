"""Settings of the rewards: the outcome of a rollout, the memory signal, and the probe that measures it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from mempo.config.base import Settings, is_import_path
from mempo.errors import nearest

SCORES = ("em", "f1", "mean_em", "mean_f1")
Normalization = Literal["default", "search-r1"]


class OutcomeSettings(Settings):
    score: str = "em"
    """`em`, `f1`, `mean_em`, `mean_f1` (see `AnswerScore`), or `module:function` with the signature `CustomScore`."""
    format_gate: bool = True
    """A broken format rule makes the score 0, however right the answer."""
    on_overflow: Literal["score", "exclude"] = "score"
    """What to do with a rollout that ran out of its context window: `score` it like any other (0 without an answer),
    or `exclude` it, so that it does not count in training or in averages."""
    separator: str = ";"
    """Splits the answer when the question has several objectives; never used with one. Its full-width form (；)
    splits too."""
    normalization: Normalization = "default"
    """How answers are compared: `default` or `search-r1` (see `mempo.rewards.answer_match`)."""

    @field_validator("score")
    @classmethod
    def _known_score(cls, value: str) -> str:
        if value not in SCORES and not is_import_path(value):
            hint = nearest(value, SCORES)
            raise ValueError(f"unknown score {value!r}{hint}; known: {', '.join(SCORES)}, or module:function")
        return value

    @field_validator("separator")
    @classmethod
    def _separator_splits(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("the separator is blank: it could not split an answer")
        return value


class ProbeSettings(Settings):
    """The continuation that asks the policy for the gold answer."""

    thought: str = "The information gathered so far is enough to answer the question."
    """The thought that is written for the policy before the answer. For a published checkpoint, use the sentence
    that it was trained with."""
    joiner: str = ";"
    """Joins the gold answers of several objectives."""
    separators_are_gold: bool = False
    """Count the joiners among the gold tokens, as the original does. They are easy to predict whatever the note
    says."""
    objectives: Literal["joined", "averaged"] = "joined"
    """How several objectives become one P: the mean over all their gold tokens, or the mean of one P per objective,
    so that a long answer weighs no more than a short one. Each objective is probed behind the answers of the
    objectives before it, because the policy answers them in order."""
    max_gold_tokens: int = Field(default=256, ge=1)
    """A longer gold answer gives no signal (`long_gold`)."""


PRESETS: dict[str, dict[str, Any]] = {
    # P(mem) alone, pooled per turn, no threshold; a lost note is the worst one; fades as the outcome speaks: the
    # defaults below.
    "recommended": {},
    # The published method, choice by choice (MemPO, arXiv 2603.00680, and its code).
    "original": {
        "baseline": "full",
        "threshold": "independent",
        "empty_is_one": True,
        "pool": "question",
        "small_pool": "original",
        "lost_notes": "ignored",
        "fade_batches": None,
        "probe": {"separators_are_gold": True},
    },
}


class LookaheadSettings(Settings):
    """Also reward what the same note is still worth later, after more tool results.

    P(mem) becomes  sum_j gamma^j P(answer | question, note t, tool results of turns t .. t+j-1) / sum_j gamma^j
    over j = 0 .. k, as far as the rollout goes.
    """

    k: int = Field(default=0, ge=0)
    """How many tool results ahead; each costs one more pass a note. 0: the note alone."""
    gamma: float = Field(default=0.9, gt=0, le=1)
    """Weight of each further tool result."""


class MemorySettings(Settings):
    """How notes are rewarded. A preset sets every key that is not given; combinations of which a part would do nothing
    are refused."""

    preset: Literal["recommended", "original"] = "recommended"
    """`recommended`: P(mem) alone, one pool for each turn, no threshold; a lost note counts as the worst
    (`lost_notes`), and memory advantages fade as scores begin to differ within groups (`fade_batches`). `original`:
    the published method, choice by choice. Keys that you give beside it win. `memory: original` alone is short for
    it."""
    baseline: Literal["none", "full", "visible", "previous_note"] = "none"
    """What P(mem) is compared with. `none`: nothing, the pool of the question is baseline enough. `full`: P given the
    whole history before the turn (the original). `visible`: P given what the policy really saw before it wrote the
    note, the right history when training in the memory context. `previous_note`: P given the note that was in force
    before, so that copying it earns nothing (HiMPO); the question alone where there was none. All but `none` cost one
    more pass a note."""
    full_policy: Literal["actor", "reference"] = "actor"
    """Which policy computes the baseline's P: the current one, or the frozen one that RL started from, which does
    not drift. Evaluation always uses the current one."""
    threshold: Literal["none", "independent", "both", "either"] = "none"
    """Which gold tokens enter the mean: all; those more probable than `threshold_value`, chosen separately on each
    side (the original); those above it on both sides; those above it on at least one."""
    threshold_value: float = Field(default=0.5, gt=0, lt=1)
    """A gold token passes when its probability is strictly greater."""
    threshold_quantile: float | None = Field(default=None, gt=0, lt=1)
    """Instead of `threshold_value`: this quantile of the log-probs of all gold tokens of the batch, both sides
    together (linear between two values)."""
    empty_is_one: bool = False
    """The original's rule: if no token passes the threshold, P is exp(0) = 1, the best possible value. Off: no
    signal."""
    reward: Literal["difference", "log_ratio", "compression"] = "difference"
    """`difference`: P(mem) - P(base). `log_ratio`: log(P(mem) + eps) - log(P(base) + eps), which does not depend on
    their scale. `compression`: (P(mem) / (P(base) + eps)) / (note tokens / tokens of the whole history), question
    included. Without a baseline, the part with P(base) is left out."""
    ratio_eps: float = Field(default=1e-4, gt=0, allow_inf_nan=False)
    """eps of `log_ratio` and `compression`."""
    length_penalty: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """lambda: every reward loses  lambda * note tokens / length_limit_tokens."""
    length_limit_tokens: int | None = Field(default=None, ge=1)
    """The note length that costs the full lambda. None: `limits.max_note_tokens`, or else `limits.max_turn_tokens`."""
    lookahead: LookaheadSettings = LookaheadSettings()
    pool: Literal["question", "turn"] = "turn"
    """Which rewards a note is compared with: all of its question, or those of the same turn."""
    min_pool: int = Field(default=4, ge=2)
    """A turn's pool with fewer rewards falls back to the question's."""
    lost_notes: Literal["ignored", "worst"] = "worst"
    """What happens with a turn that should have a note but has none that is closed, not empty and short enough, or
    whose action cannot be carried out. `ignored`: nothing. `worst`: it enters the pool with the lowest possible
    reward, and its advantage lies on everything generated in the turn."""
    small_pool: Literal["no_signal", "original"] = "no_signal"
    """A pool below 2: `no_signal`, or the original's mean 0 and std 1 (the raw reward becomes the advantage)."""
    normalize_std: bool = True
    """Divide by the pool's standard deviation."""
    weight: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Factor of the memory advantage. 0 measures the signal without training on it."""
    fade_batches: int | None = Field(default=4, ge=1)
    """Multiply `weight` by the share of silent groups (all scores equal) over this many of the last batches: full
    weight if all groups are silent, zero if none is. None: the weight is constant."""
    gate: Literal["always", "when_group_varies", "when_not_negative"] = "always"
    """Which notes get memory advantages: all; only those in groups whose scores differ; only those in rollouts with
    an outcome advantage >= 0. The other notes stay in the pool."""
    probe: ProbeSettings = ProbeSettings()

    @model_validator(mode="before")
    @classmethod
    def _fill_in_preset(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        name = data.get("preset", "recommended")
        if not isinstance(name, str) or name not in PRESETS:
            raise ValueError(f"unknown preset {name!r}{nearest(str(name), PRESETS)}; known: {', '.join(PRESETS)}")
        filled = {**PRESETS[name], **data}
        probe = data.get("probe")
        if isinstance(probe, ProbeSettings):  # what it was given, and not its defaults, stands beside the preset
            probe = probe.model_dump(include=probe.model_fields_set)
        if isinstance(probe, Mapping):
            filled["probe"] = {**PRESETS[name].get("probe", {}), **probe}
        return filled

    @model_validator(mode="after")
    def _parts_that_fit(self) -> MemorySettings:
        if self.threshold in ("both", "either") and self.baseline == "none":
            raise ValueError(
                f"threshold {self.threshold} compares two sides, but baseline none has one: use baseline full, or "
                "threshold independent"
            )
        if self.threshold != "none" and self.lookahead.k > 0:
            raise ValueError(
                f"threshold {self.threshold} chooses among the gold tokens of one context, but lookahead.k "
                f"{self.lookahead.k} averages over several: use threshold none, or lookahead.k 0"
            )
        if self.threshold != "none" and self.probe.objectives == "averaged":
            raise ValueError(
                f"threshold {self.threshold} chooses among all gold tokens together, but probe.objectives averaged "
                "takes them apart: use threshold none, or probe.objectives joined"
            )
        return self

    def beside_preset(self, name: str) -> bool:
        """Whether a setting has another value than its preset gives it."""
        return getattr(self, name) != getattr(type(self)(preset=self.preset), name)
