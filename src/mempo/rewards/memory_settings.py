"""Settings of the memory signal, and its presets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from mempo.errors import nearest
from mempo.rewards.probe import ProbeSettings
from mempo.settings import Settings

PRESETS: dict[str, dict[str, Any]] = {
    # P(mem) alone, pooled per turn, no threshold, joiners not gold: the defaults below.
    "recommended": {},
    # The published method, choice by choice (MemPO, arXiv 2603.00680, and its code).
    "original": {
        "baseline": "full",
        "threshold": "independent",
        "empty_is_one": True,
        "pool": "question",
        "small_pool": "original",
        "probe": {"separators_are_gold": True},
    },
    # Notes and rollouts compared where they were in the same state; a lost note is the worst one; fades as the outcome
    # speaks. `credit.baseline` follows it.
    "state": {"pool": "state", "lost_notes": "worst", "fade_batches": 4},
}
CREDIT_KEYS = ("pool", "min_pool", "small_pool", "weight", "normalize_std", "std_floor", "fade_batches", "gate")
"""The settings that turn rewards into advantages; an own function (`credit.function`) takes the place of them all."""


class LookaheadSettings(Settings):
    """What a note is still worth later, when more has been seen: the value of the same note, not of later ones.

    P(mem) becomes  sum_j gamma^j P(answer | question, note t, tool results of turns t .. t+j-1) / sum_j gamma^j
    over j = 0 .. k, as far as the rollout goes.
    """

    k: int = Field(default=0, ge=0)
    """How many tool results ahead; each costs one more pass a note. 0: the note alone."""
    gamma: float = Field(default=0.9, gt=0, le=1)
    """Weight of each further tool result."""

    @model_validator(mode="after")
    def _nothing_idle(self) -> LookaheadSettings:
        if self.k == 0 and self.gamma != type(self).model_fields["gamma"].default:
            raise ValueError("gamma does nothing with k 0: set k to the number of tool results to look ahead")
        return self


class MemorySettings(Settings):
    """How notes are rewarded. A preset sets every key that is not given; combinations of which a part would do nothing
    are refused."""

    preset: Literal["recommended", "original", "state"] = "recommended"
    """`recommended`: P(mem) alone, pooled per turn, no threshold. `original`: the published method, choice by choice.
    `state`: as recommended, but notes and rollouts are compared by the state that they were in (`pool`, and
    `credit.baseline` follows), a lost note counts as the worst (`lost_notes`), and memory advantages fade as the
    outcome begins to tell rollouts apart (`fade_batches`). Keys given beside it win. `memory: original` alone is short
    for it."""
    baseline: Literal["none", "full", "visible", "previous_note"] = "none"
    """What P(mem) is compared with. `none`: nothing, the pool of the question is baseline enough. `full`: P given the
    whole history before the turn (the original). `visible`: P given what the policy really saw before it wrote the
    note, the right history when training in the memory context. `previous_note`: P given the note that was in force
    before, so that copying it earns nothing (HiMPO); the question alone where there was none. All but `none` cost one
    more pass a note."""
    full_policy: Literal["actor", "reference"] = "actor"
    """Who computes the baseline's P: the policy as it is, or the frozen policy that RL started from, which does not
    drift. Evaluation knows the policy alone."""
    threshold: Literal["none", "independent", "both", "either"] = "none"
    """Which gold tokens enter the mean: all; those more probable than `threshold_value`, chosen on each side for itself
    (the original); those above it on both sides; those above it on at least one."""
    threshold_value: float = Field(default=0.5, gt=0, lt=1)
    """A gold token passes when its probability is strictly greater."""
    threshold_quantile: float | None = Field(default=None, gt=0, lt=1)
    """Instead of `threshold_value`: this quantile of the log-probs of all gold tokens of the batch, both sides
    together (linear between two values)."""
    empty_is_one: bool = False
    """The original's rule: P of an empty choice is exp(0) = 1, the best value there is. Off: no signal."""
    reward: Literal["difference", "log_ratio", "compression"] = "difference"
    """`difference`: P(mem) - P(base). `log_ratio`: log(P(mem) + eps) - log(P(base) + eps), which does not depend on
    their scale. `compression`: (P(mem) / (P(base) + eps)) / (note tokens / tokens of the whole history), question
    included. Without a baseline, the part with P(base) is left out."""
    ratio_eps: float = Field(default=1e-4, gt=0, allow_inf_nan=False)
    """eps of `log_ratio` and `compression`."""
    length_penalty: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """lambda: every reward loses  lambda * note tokens / length_limit_tokens."""
    length_limit_tokens: int | None = Field(default=None, ge=1)
    """The note length that costs a whole lambda. None: `limits.max_note_tokens`, or else `limits.max_turn_tokens`."""
    lookahead: LookaheadSettings = LookaheadSettings()
    pool: Literal["question", "turn", "state"] = "turn"
    """The rewards a note is compared with: all of its question's; those of the same turn index; or those of notes that
    were written from the very same prompt, divided by the spread of the turn."""
    min_pool: int = Field(default=4, ge=2)
    """A state's pool with fewer rewards falls back to the turn's, and a turn's to the question's."""
    lost_notes: Literal["ignored", "worst"] = "ignored"
    """What becomes of a turn that should have a note and has none that is closed, filled and short enough: nothing; or
    it enters the pool with the lowest reward there is, and its advantage lies on all that was generated in the turn."""
    small_pool: Literal["no_signal", "original"] = "no_signal"
    """A pool below 2: `no_signal`, or the original's mean 0 and std 1 (the raw reward becomes the advantage)."""
    normalize_std: bool = True
    """Divide by the pool's standard deviation."""
    std_floor: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Divide by no less than this, so that a spread which is noise is not blown up."""
    weight: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Factor of the memory advantage. 0 measures the signal without training on it."""
    fade_batches: int | None = Field(default=None, ge=1)
    """Multiply `weight` by the share of groups whose scores are all equal, over so many of the last batches: full where
    the outcome says nothing, zero where it tells all rollouts apart. None: the weight is constant."""
    gate: Literal["always", "when_group_varies", "when_not_negative"] = "always"
    """Where memory advantages are given: everywhere; only in groups whose outcome scores differ; only in rollouts whose
    outcome advantage is known and >= 0. Gated notes stay in the pool."""
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
    def _nothing_idle(self) -> MemorySettings:
        one_sided = self.baseline == "none"
        idle = [
            (
                self.threshold in ("both", "either") and one_sided,
                f"threshold {self.threshold} compares two sides, but baseline none has one: use baseline full, or "
                "threshold independent",
            ),
            (
                self.threshold == "none" and self._changed("threshold_value"),
                "threshold_value does nothing with threshold none: choose a threshold",
            ),
            (
                self.threshold == "none" and self.threshold_quantile is not None,
                "threshold_quantile does nothing with threshold none: choose a threshold",
            ),
            (
                self.threshold_quantile is not None and self._changed("threshold_value"),
                "threshold_value does nothing beside threshold_quantile: set one of the two",
            ),
            (
                self.empty_is_one and self.threshold != "independent",
                f"empty_is_one belongs to threshold independent, not {self.threshold}",
            ),
            (
                self.full_policy == "reference" and one_sided,
                "full_policy reference does nothing with baseline none: use baseline full, visible or previous_note",
            ),
            (
                self.reward == "difference" and self._changed("ratio_eps"),
                "ratio_eps does nothing with reward difference: use reward log_ratio or compression",
            ),
            (
                self.reward == "compression" and one_sided and self._changed("ratio_eps"),
                "ratio_eps does nothing with reward compression and baseline none, where nothing is divided by P(base)",
            ),
            (
                not self.length_penalty and self.length_limit_tokens is not None,
                "length_limit_tokens does nothing with length_penalty 0: set a penalty",
            ),
            (
                self.lookahead.k > 0 and self.threshold != "none",
                f"threshold {self.threshold} chooses among the gold tokens of one context, but lookahead.k "
                f"{self.lookahead.k} averages over several: use threshold none, or lookahead.k 0",
            ),
            (
                self.probe.objectives == "averaged" and self.threshold != "none",
                f"threshold {self.threshold} chooses among all gold tokens together, but probe.objectives averaged "
                "takes them apart: use threshold none, or probe.objectives joined",
            ),
            (
                self.pool == "question" and self._changed("min_pool"),
                "min_pool does nothing with pool question, which has no larger pool to fall back to: use pool turn",
            ),
            (
                self.pool == "state" and self.small_pool == "original",
                "small_pool original never falls back, which pool state does where a state has few notes: use pool "
                "question or turn",
            ),
            (
                not self.normalize_std and self.std_floor > 0,
                "std_floor does nothing with normalize_std false, which divides by nothing",
            ),
            (
                self.weight == 0 and self._changed("fade_batches"),
                "fade_batches does nothing with weight 0, which gives no memory advantage at all",
            ),
            (
                self.small_pool == "original" and self._changed("min_pool"),
                "min_pool does nothing with small_pool original, which never falls back",
            ),
            (
                self.weight == 0 and self.gate != "always",
                f"gate {self.gate} does nothing with weight 0, which gives no memory advantage at all",
            ),
        ]
        for broken, message in idle:
            if broken:
                raise ValueError(message)
        return self

    def beside_preset(self, names: tuple[str, ...]) -> list[str]:
        """Those of `names` that have another value than their preset gives them."""
        plain = type(self)(preset=self.preset)
        return [name for name in names if getattr(self, name) != getattr(plain, name)]

    def _changed(self, name: str) -> bool:
        # By value and not by "was it given": a resolved configuration gives every key.
        return getattr(self, name) != type(self).model_fields[name].default
