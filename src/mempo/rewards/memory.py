"""The memory reward: how well does the policy predict the gold answer from a note alone?

For every closed note from the second turn on (MemPO, arXiv 2603.00680):

    P(context) = exp( mean over gold tokens k of  log pi(gold_k | context, probe before k) )
    r          = P(mem)             baseline: none
    r          = P(mem) - P(full)   baseline: full

    mem  = [system, question] + [the note, tags included]
    full = [system, question] + every earlier turn with its observation

Log-probs are taken at temperature 1 and carry no gradient. A note that cannot be judged has `r` None and a reason.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from mempo.interfaces import Scorer, ScoreRequest
from mempo.question import Question
from mempo.rewards.probe import NoSignal, Probe, ProbeCodec, ProbeSettings, probe_or_reason
from mempo.settings import Settings
from mempo.trajectory import Trajectory, Turn


class MemorySettings(Settings):
    """Combinations of which a part would do nothing are refused."""

    baseline: Literal["full", "none"] = "none"
    """What P(mem) is compared with: `full`, the history before the turn (the original; one more pass a note), or
    `none`: the pool of the question is baseline enough."""
    threshold: Literal["none", "independent", "both", "either"] = "none"
    """Which gold tokens enter the mean: all; those above `threshold_value`, chosen on each side for itself (the
    original); those above it on both sides; those above it on at least one."""
    threshold_value: float = Field(default=0.5, gt=0, lt=1)
    """A gold token passes when its probability is strictly greater."""
    empty_is_one: bool = False
    """The original's rule: P of an empty choice is exp(0) = 1, the best value there is. Off: no signal."""
    reward: Literal["difference", "log_ratio"] = "difference"
    """`difference`: P(mem) - P(full); `log_ratio`: log(P(mem) + eps) - log(P(full) + eps). Without a baseline the
    second term is left out."""
    log_ratio_eps: float = Field(default=1e-4, gt=0, allow_inf_nan=False)
    """eps of `log_ratio`."""
    pool: Literal["question", "turn"] = "turn"
    """The rewards a note is normalised with: all of its question's, or those of the same turn index."""
    min_pool: int = Field(default=4, ge=2)
    """A turn's pool with fewer rewards falls back to the question's pool."""
    small_pool: Literal["no_signal", "original"] = "no_signal"
    """A pool below 2: `no_signal`, or the original's mean 0 and std 1 (the raw reward becomes the credit)."""
    weight: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Factor of the memory advantage. 0 measures the signal without training on it."""
    normalize_std: bool = True
    """Divide by the pool's standard deviation."""
    probe: ProbeSettings = ProbeSettings()

    @model_validator(mode="after")
    def _nothing_idle(self) -> MemorySettings:
        idle = [
            (
                self.threshold in ("both", "either") and self.baseline == "none",
                f"threshold {self.threshold} compares two sides, but baseline none has one: use baseline full, or "
                "threshold independent",
            ),
            (
                self.threshold == "none" and self._changed("threshold_value"),
                "threshold_value does nothing with threshold none: choose a threshold",
            ),
            (
                self.empty_is_one and self.threshold != "independent",
                f"empty_is_one belongs to threshold independent, not {self.threshold}",
            ),
            (
                self.reward != "log_ratio" and self._changed("log_ratio_eps"),
                f"log_ratio_eps does nothing with reward {self.reward}: use reward log_ratio",
            ),
            (
                self.pool == "question" and self._changed("min_pool"),
                "min_pool does nothing with pool question, which has no larger pool to fall back to: use pool turn",
            ),
            (
                self.small_pool == "original" and self._changed("min_pool"),
                "min_pool does nothing with small_pool original, which never falls back",
            ),
        ]
        for broken, message in idle:
            if broken:
                raise ValueError(message)
        return self

    def _changed(self, name: str) -> bool:
        # By value and not by "was it given": a resolved configuration gives every key.
        return getattr(self, name) != type(self).model_fields[name].default


@dataclass(frozen=True)
class NoteScore:
    """The reward of one note; `turn` is 0-based. `r` None: no signal, for `reason` (a `NoSignal`).

    `p_mem`, `p_full`: what `r` is made of, None where there is no such number. `p_mem_raw`, `p_full_raw`: the same
    before any threshold. `kept_*`: how many of the `gold_tokens` passed it.
    """

    turn: int
    p_mem: float | None
    p_full: float | None
    r: float | None
    gold_tokens: int
    kept_mem: int
    kept_full: int | None
    p_mem_raw: float | None
    p_full_raw: float | None = None
    reason: str | None = None


# --- contexts ------------------------------------------------------------------------------------------------------


def note_context(trajectory: Trajectory, turn: Turn) -> tuple[int, ...]:
    """`[system, question][note]`: the ids that the note takes in a rebuilt context, so what is scored is what is seen.

    Raises:
        ValueError: the turn holds no closed note.
    """
    if turn.note_ids is None:
        raise ValueError(f"turn {turn.index} of question {trajectory.question_id} holds no closed note")
    return trajectory.question_ids + turn.note_ids


def full_context(trajectory: Trajectory, turn: Turn) -> tuple[int, ...]:
    """`[system, question]` and every turn before this one, with notes and observations."""
    ids = list(trajectory.question_ids)
    for earlier in trajectory.turns[: turn.index]:
        ids += earlier.own_ids
        if earlier.observation is not None:
            ids += earlier.observation.ids
    return tuple(ids)


BASELINES: dict[str, Callable[[Trajectory, Turn], tuple[int, ...]]] = {"full": full_context}
"""The context of each `baseline` that needs one; the others cost no pass."""


# --- arithmetic ----------------------------------------------------------------------------------------------------


def note_reward(turn: int, mem: np.ndarray, full: np.ndarray | None, settings: MemorySettings) -> NoteScore:
    """The reward of one note from the log-probs of its gold tokens, `[gold]` on each side; `full` None: no baseline."""
    if not np.isfinite(mem).all() or (full is not None and not np.isfinite(full).all()):
        return _silent(turn, NoSignal.NAN, gold_tokens=len(mem))
    keep_mem, keep_full = _kept(mem, full, settings)
    p_mem = _probability(mem, keep_mem, settings)
    p_full = None if full is None or keep_full is None else _probability(full, keep_full, settings)
    r = None if p_mem is None or (full is not None and p_full is None) else _reward(p_mem, p_full, settings)
    return NoteScore(
        turn=turn,
        p_mem=p_mem,
        p_full=p_full,
        r=r,
        gold_tokens=len(mem),
        kept_mem=int(keep_mem.sum()),
        kept_full=None if keep_full is None else int(keep_full.sum()),
        p_mem_raw=math.exp(float(mem.mean())),
        p_full_raw=None if full is None else math.exp(float(full.mean())),
        reason=NoSignal.EMPTY_CHOICE if r is None else None,
    )


def _kept(mem: np.ndarray, full: np.ndarray | None, settings: MemorySettings) -> tuple[np.ndarray, np.ndarray | None]:
    """Masks `[gold]` of the tokens that enter the mean on either side."""
    if settings.threshold == "none":
        everything = np.ones(len(mem), dtype=bool)
        return everything, None if full is None else everything
    bar = math.log(settings.threshold_value)
    above_mem = mem > bar
    if full is None:
        return above_mem, None
    above_full = full > bar
    if settings.threshold == "independent":
        return above_mem, above_full
    common = above_mem & above_full if settings.threshold == "both" else above_mem | above_full
    return common, common


def _probability(logprobs: np.ndarray, keep: np.ndarray, settings: MemorySettings) -> float | None:
    if not keep.any():
        return 1.0 if settings.empty_is_one else None
    return math.exp(float(logprobs[keep].mean()))


def _reward(p_mem: float, p_full: float | None, settings: MemorySettings) -> float:
    if settings.reward == "log_ratio":
        eps = settings.log_ratio_eps
        return math.log(p_mem + eps) - (0.0 if p_full is None else math.log(p_full + eps))
    return p_mem - (0.0 if p_full is None else p_full)


def _silent(turn: int, reason: NoSignal, gold_tokens: int = 0) -> NoteScore:
    return NoteScore(turn, None, None, None, gold_tokens, 0, None, None, None, reason)


# --- a batch -------------------------------------------------------------------------------------------------------


def score_notes(
    questions: Sequence[Question],
    trajectories: Sequence[Trajectory],
    codec: ProbeCodec,
    scorer: Scorer,
    settings: MemorySettings,
    limit_tokens: int | None = None,
) -> list[list[NoteScore]]:
    """`[rollouts][notes]`: every closed note of the second turn and later, in turn order, with or without signal.

    `questions[i]` belongs to `trajectories[i]`. All log-probs of the batch are asked for in one call of the scorer, so
    that it can share prefixes; when no note can be scored it is not called. `limit_tokens` is what the policy can see:
    a note of which a context with its probe is longer gives no signal (a whole history can outgrow the window that the
    memory context keeps within).

    Raises:
        ValueError: the lists do not belong together, or the scorer's answer has another shape than asked for.
    """
    if len(questions) != len(trajectories):
        raise ValueError(f"{len(questions)} questions for {len(trajectories)} trajectories")
    probes: dict[int, Probe | NoSignal] = {}
    requests: list[ScoreRequest] = []
    places: list[list[tuple[int, NoSignal | slice]]] = []  # [rollouts][notes]: the turn, and where its answers will be
    context_of_baseline = BASELINES.get(settings.baseline)
    for question, trajectory in zip(questions, trajectories, strict=True):
        if question.id != trajectory.question_id:
            raise ValueError(f"trajectory of question {trajectory.question_id!r} paired with question {question.id!r}")
        if id(question) not in probes:
            probes[id(question)] = probe_or_reason(codec, question, settings.probe)
        probe = NoSignal.ERROR if trajectory.is_error else probes[id(question)]
        places.append([])
        for turn in trajectory.turns[1:]:
            if turn.note_ids is None:
                continue
            if isinstance(probe, NoSignal):
                places[-1].append((turn.index, probe))
                continue
            wanted = [_request(note_context(trajectory, turn), probe)]
            if context_of_baseline is not None:
                wanted.append(_request(context_of_baseline(trajectory, turn), probe))
            longest = max(len(request.prefix_ids) + len(request.continuation_ids) for request in wanted)
            if limit_tokens is not None and longest > limit_tokens:
                places[-1].append((turn.index, NoSignal.TOO_LONG))
                continue
            places[-1].append((turn.index, slice(len(requests), len(requests) + len(wanted))))
            requests += wanted
    logprobs = _ask(scorer, requests)

    def note(turn: int, place: NoSignal | slice) -> NoteScore:
        if isinstance(place, NoSignal):
            return _silent(turn, place)
        mem, *baseline = logprobs[place]
        return note_reward(turn, mem, baseline[0] if baseline else None, settings)

    return [[note(turn, place) for turn, place in rollout] for rollout in places]


def no_signal_counts(notes: Iterable[Iterable[NoteScore]]) -> dict[str, int]:
    """How many notes of `[rollouts][notes]` have no reward, by reason."""
    return dict(Counter(str(note.reason) for rollout in notes for note in rollout if note.r is None))


def _request(context: tuple[int, ...], probe: Probe) -> ScoreRequest:
    # What follows the last gold token cannot change its probability.
    return ScoreRequest(context, probe.ids[: probe.gold[-1] + 1], probe.gold)


def _ask(scorer: Scorer, requests: list[ScoreRequest]) -> list[np.ndarray]:
    if not requests:
        return []
    logprobs = [np.asarray(values, dtype=np.float64) for values in scorer.score(requests, temperature=1.0)]
    wanted = [(len(request.which or ()),) for request in requests]
    shapes = [values.shape for values in logprobs]
    if shapes != wanted:
        raise ValueError(f"the scorer answered with shapes {shapes[:4]}… where {wanted[:4]}… were asked for")
    return logprobs
