"""Tokens of a step, from the shape of a rollout. The order is that of docs/cluster.md, "Plan".

A rollout has turns t = 1 .. T. Its lengths: q question, g written in a turn, n of it the note, a of it the action,
o a tool result (after every turn but the last), p the probe.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mempo.config.plan import PlanSettings


@dataclass(frozen=True)
class StepTokens:
    """One batch of questions."""

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
    trajectories = s.questions * s.rollouts
    turns = range(1, s.turns + 1)
    rows = row_tokens(s)
    of_probes = probe_rows(s)
    return StepTokens(
        trajectories=trajectories,
        longest_context=max(prompt_tokens(s, t) + s.turn_tokens for t in turns),
        generated=trajectories * s.turns * s.turn_tokens,
        prefilled=trajectories * sum(prompt_tokens(s, t) for t in turns),
        prefilled_cached=s.questions * s.question_tokens + trajectories * sum(new_tokens(s, t) for t in turns[1:]),
        rows=trajectories * len(rows),
        padding_rows=padding_rows(s, trajectories * len(rows)),
        trained=trajectories * sum(rows),
        probe_rows=sum(count for count, _ in of_probes),
        probes=sum(count * length for count, length in of_probes),
        searches=trajectories * (s.turns - 1),
    )


def prompt_tokens(s: PlanSettings, t: int) -> int:
    """What is seen at the beginning of turn t."""
    q, g, o, before = s.question_tokens, s.turn_tokens, s.observation_tokens, t - 1
    if t == 1:
        return q
    if s.agent_context == "memory":
        return q + s.note_tokens + s.action_tokens + o
    if s.agent_context == "generations":
        return q + before * g + o
    return q + min(before, _shown_turns(s)) * (g + o)


def extends(s: PlanSettings, t: int) -> bool:
    """Whether the prompt of turn t > 1 is the row so far and a tool result, so that the turn joins that row."""
    if s.agent_context == "memory":
        return False
    if s.agent_context == "generations":
        return t == 2
    return t - 1 <= _shown_turns(s)


def new_tokens(s: PlanSettings, t: int) -> int:
    """Of the prompt of turn t > 1, what no earlier step of the rollout has at the same place."""
    if extends(s, t):
        return s.observation_tokens
    if s.agent_context == "generations":
        return s.turn_tokens + s.observation_tokens
    return prompt_tokens(s, t) - s.question_tokens


def row_tokens(s: PlanSettings) -> list[int]:
    """Lengths of the training rows of one rollout."""
    rows: list[int] = []
    for t in range(1, s.turns + 1):
        length = prompt_tokens(s, t) + s.turn_tokens
        if rows and extends(s, t):
            rows[-1] = length
        else:
            rows.append(length)
    return rows


def padding_rows(s: PlanSettings, rows: int) -> int:
    """Mini-batches have equal numbers of rows, which divide by the data-parallel ranks."""
    each, ranks = -(-rows // s.updates), s.gpus // s.sequence_parallel
    return s.updates * (-(-each // ranks) * ranks) - rows


def probe_rows(s: PlanSettings) -> list[tuple[int, int]]:
    """`[(how many, tokens of each)]`: notes of the turns 2 .. T, their probe behind each context. Equal rows count
    once."""
    if not s.memory_signal:
        return []
    q, n, o, p, g = s.question_tokens, s.note_tokens, s.observation_tokens, s.probe_tokens, s.turn_tokens
    trajectories, found = s.questions * s.rollouts, []
    for t in range(2, s.turns + 1):
        found.append((trajectories, q + n + p))
        found += [(trajectories, q + n + j * o + p) for j in range(1, min(s.lookahead, s.turns - t) + 1)]
        if s.baseline == "full":
            found.append((trajectories, q + (t - 1) * (g + o) + p))
        elif s.baseline == "visible":
            found.append((trajectories, prompt_tokens(s, t) + p))
        elif s.baseline == "previous_note" and t == 2:
            found.append((s.questions, q + p))  # later ones are the note's own row of the turn before
    return found


def _shown_turns(s: PlanSettings) -> int:
    if s.agent_context in ("full", "react"):
        return s.turns
    if s.agent_context == "last_turn":
        return 1
    return int(re.sub(r"\D", "", s.agent_context))
