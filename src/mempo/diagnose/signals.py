"""Every signal on offer, as what it would pay for the notes of a batch; training's own functions make the numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mempo.credit import CreditSettings
from mempo.interfaces import Scorer
from mempo.question import Question
from mempo.rewards.memory import NoteScore, score_notes
from mempo.rewards.memory_settings import CREDIT_KEYS, PRESETS, MemorySettings
from mempo.rewards.outcome import OutcomeScore
from mempo.rewards.probe import ProbeCodec
from mempo.train.credit import assign_credit
from mempo.trajectory import Trajectory


@dataclass(frozen=True)
class Played:
    """Rollouts of whole groups, in order, and what scores their notes. All lists are `[rollouts]`."""

    questions: Sequence[Question]
    trajectories: Sequence[Trajectory]
    outcomes: Sequence[OutcomeScore]
    group_size: int
    codec: ProbeCodec
    scorer: Scorer
    window_tokens: int | None = None


SIGNALS: dict[str, dict[str, Any]] = {
    "recommended": {},
    "original": {"preset": "original"},
    "no std": {"normalize_std": False},
    "log ratio": {"reward": "log_ratio"},
    "against what was seen": {"baseline": "visible"},
    "against the last note": {"baseline": "previous_note"},
}
"""Memory signals by name, as settings of `memory.*`; the probe is the run's."""


def signals_of(played: Played, memory: MemorySettings, credit: CreditSettings) -> dict[str, list[dict[int, float]]]:
    """`{signal: [rollouts]{turn: advantage}}`; turns to which a signal gives nothing are left out. The outcome gives
    to every turn alike. The run's own settings are among them where they are none of those on offer."""
    found: dict[str, list[dict[int, float]]] = {}
    scored: dict[str, list[list[NoteScore]]] = {}
    for name, settings in _settings(memory).items():
        rewards = settings.model_copy(update={key: _DEFAULTS[key] for key in CREDIT_KEYS}).model_dump_json()
        if rewards not in scored:  # the same rewards, pooled in another way
            scored[rewards] = score_notes(
                played.questions, played.trajectories, played.codec, played.scorer, settings, played.window_tokens
            )
        made = assign_credit(played.trajectories, played.outcomes, scored[rewards], played.group_size, credit, settings)
        if not found:
            found["outcome"] = [
                {turn.index: value for turn in trajectory.turns}
                for trajectory, value in zip(played.trajectories, made.outcome, strict=True)
            ]
        found[name] = made.memory
    for name in ("recommended",):
        found[f"outcome + {name}"] = [_sum(a, b) for a, b in zip(found["outcome"], found[name], strict=True)]
    return found


def _settings(memory: MemorySettings) -> dict[str, MemorySettings]:
    """The memory signals on offer with the run's probe, and the run's own."""
    on_offer = {}
    for name, keys in SIGNALS.items():
        change = PRESETS[keys["preset"]].get("probe", {}) if "preset" in keys else {}
        on_offer[name] = MemorySettings(**keys, probe=memory.probe.model_copy(update=change))
    # The policy of the run is all there is: nothing else can answer for the baseline.
    mine = memory.model_copy(update={"full_policy": "actor"})
    return on_offer if mine in on_offer.values() else {**on_offer, "as in the run": mine}


_DEFAULTS = MemorySettings().model_dump()


def _sum(a: Mapping[int, float], b: Mapping[int, float]) -> dict[int, float]:
    return {turn: value + b.get(turn, 0.0) for turn, value in a.items()}
