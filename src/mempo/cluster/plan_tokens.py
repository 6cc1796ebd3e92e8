"""Tokens of a step: a rollout of the planned lengths is made by the agent's own context, rows and probes, and counted.
The order is that of docs/cluster.md, "Plan".
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import count, islice
from typing import cast

from mempo.config.plan import PlanSettings
from mempo.rewards.note_contexts import BASELINES, Ids, ahead_contexts, note_context
from mempo.rollout.context import make_context
from mempo.rollout.protocol import TurnGrammar, parse_turn
from mempo.rollout.render import Renderer
from mempo.rollout.tokenizer import common_prefix
from mempo.rollout.trajectory import GenerationStop, Observation, ObservationPart, StopReason, Trajectory, Turn, rows_of

_NOTED = parse_turn("<mem>n</mem><think>t</think><search>q</search>", 1, TurnGrammar())


@dataclass(frozen=True)
class RolloutTokens:
    """Of one rollout that goes all its turns: its `prompts`, what is `new` in each (no earlier sequence begins with
    it), its training `rows` and its probe rows, those that are the same counted once."""

    prompts: list[int]
    new: list[int]
    rows: list[int]
    probes: list[int]


@dataclass(frozen=True)
class StepTokens:
    """One batch of questions."""

    rollout: RolloutTokens
    trajectories: int
    longest_context: int
    """Prompt and reply of the largest step."""
    generated: int
    prefilled: int
    """Without a prefix cache."""
    prefilled_cached: int
    """With one that holds everything: a question once for its group, what was written never again."""
    rows: int
    padding_rows: int
    """Added so that every mini-batch divides by the ranks."""
    trained: int
    """In all rows, prompts included."""
    probe_rows: int
    probes: int
    """In all probe rows: every one is run whole."""
    searches: int


def step_tokens(s: PlanSettings) -> StepTokens:
    trajectories, one = s.questions * s.rollouts, rollout_tokens(s)
    return StepTokens(
        rollout=one,
        trajectories=trajectories,
        longest_context=max(one.prompts) + s.turn_tokens,
        generated=trajectories * s.turns * s.turn_tokens,
        prefilled=trajectories * sum(one.prompts),
        prefilled_cached=s.questions * s.question_tokens + trajectories * sum(one.new[1:]),
        rows=trajectories * len(one.rows),
        padding_rows=padding_rows(s, trajectories * len(one.rows)),
        trained=trajectories * sum(one.rows),
        probe_rows=trajectories * len(one.probes),
        probes=trajectories * sum(one.probes),
        searches=trajectories * (s.turns - 1),
    )


def rollout_tokens(s: PlanSettings) -> RolloutTokens:
    episode = planned_rollout(s)
    turns, probed = episode.turns, dict[Ids, None]()
    for turn in turns[1:] if s.memory_signal else ():
        probed |= dict.fromkeys([note_context(episode, turn), *ahead_contexts(episode, turn, s.lookahead)])
        if s.baseline != "none":
            probed[BASELINES[s.baseline](episode, turn)] = None
    sequences = [turn.prompt_ids + turn.own_ids for turn in turns]
    known = [max((common_prefix(turn.prompt_ids, ids) for ids in sequences[: turn.index]), default=0) for turn in turns]
    return RolloutTokens(
        prompts=[len(turn.prompt_ids) for turn in turns],
        new=[len(turn.prompt_ids) - shared for turn, shared in zip(turns, known, strict=True)],
        rows=[len(row.ids) for row in rows_of(episode)],
        probes=[len(ids) + s.probe_tokens for ids in probed],
    )


def planned_rollout(s: PlanSettings) -> Trajectory:
    """A rollout of the planned lengths. No two of its tokens are the same, so that nothing is shared by chance."""
    ids = count()

    def fresh(tokens: int) -> tuple[int, ...]:
        return tuple(islice(ids, tokens))

    context = make_context(s.agent_context, cast("Renderer", None))  # which only cuts what is too long
    question, turns = fresh(s.question_tokens), list[Turn]()
    note = s.turn_tokens - s.note_tokens  # at the end, so that no prompt begins like the turn that its note is from
    for index in range(s.turns):
        own, last = fresh(s.turn_tokens), index + 1 == s.turns
        turn = Turn(
            index=index,
            prompt_ids=context.build(question, turns, sys.maxsize).ids,
            generated_ids=own,
            logprobs=(),
            stop=GenerationStop.STOP_STRING,
            parsed=_NOTED,
            note_ids=own[note:],
            action_ids=own[note - s.action_tokens : note],
            observation=None if last else Observation((ObservationPart(fresh(s.observation_tokens)),)),
        )
        turns.append(turn)
    return Trajectory("", 0, question, tuple(turns), StopReason.TURN_LIMIT)


def padding_rows(s: PlanSettings, rows: int) -> int:
    """Mini-batches have equal numbers of rows, which divide by the data-parallel ranks."""
    each, ranks = -(-rows // s.updates), s.gpus // s.sequence_parallel
    return s.updates * (-(-each // ranks) * ranks) - rows
