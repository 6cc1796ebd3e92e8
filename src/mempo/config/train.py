"""Settings of training: the two stages, their optimizers, the loss and the advantages."""

from __future__ import annotations

import warnings
from typing import Literal

from pydantic import Field, model_validator

from mempo.config.base import Settings


class AdvantageSettings(Settings):
    """From scores to outcome advantages."""

    normalize_std: bool = True
    """Divide by the group's standard deviation; off is the Dr. GRPO variant (mean only)."""
    function: str | None = None
    """`package.module:function` that computes the advantages from an `AdvantageBatch`, instead of the built-in
    formulas (docs/extending.md)."""


KLKind = Literal["k1", "k2", "k3"]
Aggregate = Literal["token_mean", "rollout_mean"]


class LossSettings(Settings):
    """PPO's clipped surrogate, and a KL term that keeps the policy near the one that RL started from."""

    clip_low: float = Field(default=0.2, gt=0, le=1)
    """Ratios below 1 - clip_low are clipped."""
    clip_high: float = Field(default=0.2, gt=0, allow_inf_nan=False)
    """Ratios above 1 + clip_high are clipped."""
    kl: Literal["none", "k1", "k2", "k3"] = "none"
    """Estimator of the KL to the reference policy in the loss, see `kl_estimate`. As a loss term k2 has the gradient of
    KL(policy || reference), k3 that of KL(reference || policy), and k1 none on average."""
    kl_coef: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Factor of the KL term. It also applies to groups whose scores are all equal."""
    aggregate: Aggregate = "token_mean"
    """`token_mean`: every generated token of the batch counts the same. `rollout_mean`: every rollout counts the
    same."""

    @model_validator(mode="after")
    def _warn_of_k1(self) -> LossSettings:
        if self.kl == "k1":
            warnings.warn(
                "kl k1 as a loss term has a gradient of zero on average: it adds noise and holds nothing back; "
                "use k2 (gradient of KL(policy || reference)) or k3",
                stacklevel=2,
            )
        return self


class OptimSettings(Settings):
    """The optimizer of one stage."""

    kind: Literal["adamw", "muon"] = "adamw"
    """`muon` steps the matrices inside the layers with torch's Muon, and everything else with AdamW."""
    muon_lr: float = Field(default=0.02, gt=0, allow_inf_nan=False)
    """Peak learning rate of Muon; it follows the same warm-up and schedule as `lr`."""
    lr: float = Field(default=1e-6, gt=0, allow_inf_nan=False)
    """Peak learning rate."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps of linear rise from 0."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """What follows the warm-up: to zero at the last step, or flat."""
    min_lr_ratio: float = Field(default=0.0, ge=0, le=1)
    """Where `linear` and `cosine` end, as a share of `lr`."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Decay of the mean of gradients."""
    beta2: float = Field(default=0.999, ge=0, lt=1)
    """Decay of the mean of their squares."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Share of a weight that is subtracted in each step, times the learning rate."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """A gradient with a larger norm is scaled down to it."""
    micro_batch_tokens: int = Field(default=16_384, ge=1)
    """Padded tokens of one forward and backward pass; changes memory and speed, never the result."""


class ExpertSettings(Settings):
    """How the expert writes. All other words it copies from its queries and results."""

    loss: float = 0.0
    """Chance that a newly found fact is left out of the note, for good."""
    lossless_share: float = 0.0
    """Share of the episodes in which nothing is lost, so that the policy has seen complete notes."""
    known: str = "{query}: {found}"
    """How a note states a fact."""
    lost: str = ""
    """What a note says instead of a lost fact, `{query}` filled in; empty: nothing at all."""
    separator: str = "; "
    """Between facts in a note."""
    nothing: str = "nothing"
    """What a note says when nothing is known."""
    open: str = "\nopen: {queries}"
    """What follows the facts while some are still missing; empty: nothing."""
    think_search: str = "next: {query}"
    """The thought before anything but an answer; `{query}` is what is searched for, or where an expert of an
    environment is going; such experts may fill in more."""
    think_answer: str = "all done"
    """The thought before an answer."""
    joiner: str = "; "
    """Between the answers of several objectives."""
    unknown: str = "unknown"
    """The answer to an objective whose fact the expert does not know."""
    omit_unknown: bool = False
    """Leave such objectives out of the answer, unless nothing else is left. This is easier to learn than writing
    `unknown` in the right places, and just as wrong."""


class SftSettings(Settings):
    """The cold start."""

    steps: int = Field(default=0, ge=0)
    """Optimizer steps; 0 skips the stage."""
    batch_rows: int = Field(default=32, ge=1)
    """Rows of an optimizer step."""
    demos: int = Field(default=500, ge=1)
    """Episodes of the expert."""
    rollouts: str | None = None
    """A folder of `mempo eval` in which a stronger model played the training questions: its right rollouts are the
    demonstrations, in place of the expert's (docs/data.md)."""
    full_share: float = Field(default=0.2, ge=0, le=1)
    """Share of the episodes that are shown with the full history, so that the policy has seen such prompts too."""
    probe_share: float = Field(default=0.2, ge=0, lt=1)
    """Share of the rows that are probe samples, `[question][note] → answer`: without them the memory signal asks for
    something the policy has never seen."""
    lossless_probes: bool = True
    """Probe samples from episodes with complete notes, whatever `expert.loss` is."""
    expert: ExpertSettings = ExpertSettings()
    lossy_steps: int | None = Field(default=None, ge=1)
    """Only this many steps at the end show notes that lose facts (`expert.loss`). The steps before show complete
    notes, so that the policy can write those before it learns to forget. None: all steps lose facts."""
    optim: OptimSettings = OptimSettings(lr=1e-5, warmup_steps=10, schedule="cosine")
    save_every: int = Field(default=100, ge=1)
    """Steps between checkpoints."""
    keep_every: int | None = Field(default=None, ge=1)
    """Keep every checkpoint at a multiple of this many steps: policies of growing strength that other runs can start
    from (`start`). None: only the last two stay."""


class RlSettings(Settings):
    """The reinforcement learning stage."""

    steps: int = Field(default=0, ge=0)
    """Batches of questions; 0 skips the stage."""
    seed: int | None = Field(default=None, ge=0)
    """Seed of the order of questions and of the rollouts; None: `seed`, which also decides the data and the start.
    Change only `rl.seed` to see the noise of RL from one start."""
    questions_per_step: int = Field(default=8, ge=1)
    """Questions of a batch."""
    rollouts_per_question: int = Field(default=16, ge=1)
    """Rollouts of a question, which are compared with each other."""
    updates_per_step: int = Field(default=1, ge=1)
    """Optimizer steps per batch of questions, whatever the number of turns and rows; questions are divided evenly."""
    temperature: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Sampling temperature during training, also used for the ratios of the loss."""
    schedule: Literal["auto", "lockstep", "eager"] = "auto"
    """How rollouts are batched: `lockstep` repeats exactly, `eager` never waits. `auto`: lockstep on CPU."""
    memory_signal: bool = True
    """Score the notes and add their advantages. Off: outcome alone, whatever `memory` says; evaluation still reports
    P(mem)."""
    probe_check_questions: int = Field(default=24, ge=0)
    """How many questions check before the first step whether the probe can tell a right note from one with a wrong
    fact, and from another question's note; 0: no check."""
    max_failed_share: float = Field(default=0.8, gt=0, le=1, allow_inf_nan=False)
    """If a larger share of a step's rollouts failed (tools, a model server), the run stops with the cause, because
    the few that are left say little about the policy. 1: stop only if all failed."""
    optim: OptimSettings = OptimSettings()
    loss: LossSettings = LossSettings()
    save_every: int = Field(default=20, ge=1)
    """Steps between checkpoints."""
    log_rollouts_every: int = Field(default=1, ge=0)
    """Save the rollouts of every n-th step; 0 saves none."""

    @model_validator(mode="after")
    def _updates_divide_questions(self) -> RlSettings:
        if self.questions_per_step % self.updates_per_step:
            raise ValueError(
                f"questions_per_step {self.questions_per_step} is not a multiple of updates_per_step "
                f"{self.updates_per_step}; {self.questions_per_step * self.updates_per_step} is"
            )
        return self


class ToySettings(Settings):
    """Shape and warm-up of the toy policy."""

    hidden_size: int = Field(default=64, ge=8)
    """Width of the layers."""
    layers: int = Field(default=2, ge=2)
    """At least two: the first looks back, the second looks up."""
    heads: int = Field(default=4, ge=1)
    """Attention heads of a layer."""
    window_tokens: int = Field(default=1024, ge=64)
    """The most tokens that it can see."""
    warmup_steps: int = Field(default=200, ge=0)
    """SFT steps of copying alone; they count among `sft.steps`."""
    copy_share: float = Field(default=0.3, ge=0, lt=1)
    """Share of copying rows in the steps that follow."""
    copy_rows: int = Field(default=64, ge=1)
    """Rows of a step of copying alone."""

    @model_validator(mode="after")
    def _heads_divide(self) -> ToySettings:
        if self.hidden_size % self.heads:
            raise ValueError(
                f"toy.hidden_size {self.hidden_size} is not a multiple of toy.heads {self.heads}; try 4 or 8"
            )
        return self
