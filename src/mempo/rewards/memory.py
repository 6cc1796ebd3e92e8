"""The memory reward: how well does the policy predict the gold answer from a note alone?

For every closed note from the second turn on (MemPO, arXiv 2603.00680):

    P(context) = exp( mean over gold tokens k of  log pi(gold_k | context, probe before k) )
    r          = P(mem)             baseline: none
    r          = P(mem) - P(base)   any other baseline

Log-probs are taken at temperature 1 and carry no gradient. A note that cannot be judged has `r` None and a reason.
The contexts are in `note_contexts.py`, the arithmetic in `note_reward.py`; here a whole batch is asked for at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mempo.config.rewards import MemorySettings
from mempo.rewards.note_contexts import BASELINES, Ids, ahead_contexts, full_context, note_context
from mempo.rewards.note_reward import Evidence, NoteScore, note_reward, silent, threshold_bar
from mempo.rewards.probe import NoSignal, Probe, ProbeTokenizer, probe_or_reason
from mempo.rollout.interfaces import Scorer, ScoreRequest
from mempo.rollout.question import Question
from mempo.rollout.trajectory import Trajectory, Turn

__all__ = ["MemorySettings", "NoteScore", "score_notes"]


@dataclass
class _Asked:
    """Requests to one scorer, and after `ask` their answers."""

    scorer: Scorer | None
    requests: list[ScoreRequest] = field(default_factory=list)
    answers: list[np.ndarray] = field(default_factory=list)

    def want(self, context: Ids, probe: Probe) -> int:
        self.requests.append(probe_request(context, probe))
        return len(self.requests) - 1

    def ask(self) -> None:
        if self.requests:
            assert self.scorer is not None  # `score_notes` refused a missing reference
            scored = self.scorer.score(self.requests, temperature=1.0)
            self.answers = [np.asarray(values, dtype=np.float64) for values in scored]
            wanted = [(len(request.which or ()),) for request in self.requests]
            shapes = [values.shape for values in self.answers]
            if shapes != wanted:
                raise ValueError(f"the scorer answered with shapes {shapes[:4]}… where {wanted[:4]}… were asked for")


@dataclass(frozen=True)
class _Place:
    """Where the answers about a note will be."""

    turn: Turn
    probe: Probe
    mem: int
    ahead: range
    base: int | None
    history_tokens: int


def score_notes(
    questions: Sequence[Question],
    trajectories: Sequence[Trajectory],
    tokenizer: ProbeTokenizer,
    scorer: Scorer,
    settings: MemorySettings,
    limit_tokens: int | None = None,
    reference: Scorer | None = None,
    counted: Sequence[bool] | None = None,
) -> list[list[NoteScore]]:
    """`[rollouts][notes]`: every closed note of the second turn and later, in turn order, with or without signal.

    `questions[i]` belongs to `trajectories[i]`. All log-probs of the batch are asked for in one call of the scorer, so
    that it can share prefixes; when no note can be scored it is not called. `reference` answers for the baseline where
    `full_policy` asks for it. `limit_tokens` is what the policy can see: a note of which a context with its probe is
    longer gives no signal (a whole history can outgrow the window that the memory context keeps within). `counted`
    `[rollouts]`: nothing is asked about the notes of the others, which do not count.

    Raises:
        ValueError: the lists do not belong together, the scorer's answer has another shape than asked for, or there is
            no reference where one is needed.
    """
    if len(questions) != len(trajectories):
        raise ValueError(f"{len(questions)} questions for {len(trajectories)} trajectories")
    if settings.full_policy == "reference" and reference is None:
        raise ValueError("memory.full_policy is reference, but no reference policy was given")
    actor = _Asked(scorer)
    base_asked = _Asked(reference) if settings.full_policy == "reference" else actor
    probes: dict[int, Probe | NoSignal] = {}
    places: list[list[tuple[int, NoSignal | _Place]]] = []  # [rollouts][notes]
    for question, trajectory, counts in zip(
        questions, trajectories, counted or [True] * len(trajectories), strict=True
    ):
        if question.id != trajectory.question_id:
            raise ValueError(f"trajectory of question {trajectory.question_id!r} paired with question {question.id!r}")
        if id(question) not in probes:
            probes[id(question)] = probe_or_reason(tokenizer, question, settings.probe)
        probe: Probe | NoSignal = probes[id(question)]
        if trajectory.is_error or not counts:
            probe = NoSignal.ERROR if trajectory.is_error else NoSignal.UNSCORED
        places.append([])
        for turn in trajectory.turns[1:]:
            if turn.note_ids is not None:
                place: NoSignal | _Place
                if isinstance(probe, NoSignal):
                    place = probe
                else:
                    place = _place(trajectory, turn, probe, settings, limit_tokens, actor, base_asked)
                places[-1].append((turn.index, place))
    actor.ask()
    if base_asked is not actor:
        base_asked.ask()

    evidence = {
        id(place): _evidence(place, actor, base_asked)
        for rollout in places
        for _, place in rollout
        if isinstance(place, _Place)
    }
    bar = threshold_bar(list(evidence.values()), settings)

    def note(turn: int, place: NoSignal | _Place) -> NoteScore:
        return silent(turn, place) if isinstance(place, NoSignal) else note_reward(evidence[id(place)], settings, bar)

    return [[note(turn, place) for turn, place in rollout] for rollout in places]


def probe_request(context: Ids, probe: Probe) -> ScoreRequest:
    """The request that asks for the log-probs of the gold tokens after `context`."""
    # What follows the last gold token cannot change its probability.
    return ScoreRequest(context, probe.ids[: probe.gold[-1] + 1], probe.gold)


def _place(
    trajectory: Trajectory,
    turn: Turn,
    probe: Probe,
    settings: MemorySettings,
    limit_tokens: int | None,
    actor: _Asked,
    base_asked: _Asked,
) -> _Place | NoSignal:
    mem = note_context(trajectory, turn)
    ahead = ahead_contexts(trajectory, turn, settings.lookahead.k)
    base = BASELINES[settings.baseline](trajectory, turn) if settings.baseline != "none" else None
    longest = max(map(len, (mem, *ahead, *(() if base is None else (base,)))))
    if limit_tokens is not None and longest + probe.gold[-1] + 1 > limit_tokens:
        return NoSignal.TOO_LONG
    mem_at = actor.want(mem, probe)
    ahead_at = [actor.want(context, probe) for context in ahead]
    return _Place(
        turn=turn,
        probe=probe,
        mem=mem_at,
        ahead=range(mem_at + 1, mem_at + 1 + len(ahead_at)),
        base=None if base is None else base_asked.want(base, probe),
        history_tokens=len(full_context(trajectory, turn)),
    )


def _evidence(place: _Place, actor: _Asked, base_asked: _Asked) -> Evidence:
    return Evidence(
        turn=place.turn.index,
        mem=actor.answers[place.mem],
        base=None if place.base is None else base_asked.answers[place.base],
        ahead=[actor.answers[i] for i in place.ahead],
        objectives=place.probe.objectives,
        note_tokens=len(place.turn.note_ids or ()),
        history_tokens=place.history_tokens,
    )
