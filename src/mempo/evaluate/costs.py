"""What a rollout cost: in tokens, as its own line tells.

| metric | what |
|---|---|
| `total_tokens` | question, own tokens and tool results, each once: the length of the transcript |
| `peak_context_tokens` | the largest prompt plus reply of one step |
| `read_tokens`, `written_tokens` | prompts and replies over all steps, contexts counted anew each time |
| `dependency` | MEM1's: Σ over steps of (2·n_in + n_out)·n_out / 2, the tokens that every written one rests on |
| `mem1_peak_tokens` | MEM1's peak: the largest (turn before and its tool result + this turn), prompt excluded |

MEM1's script counts with a tokenizer of its own and leaves the prompt out of n_in; here tokens are the policy's, and
n_in is all that the step read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mempo.rollout.trajectory import Trajectory


class Step(NamedTuple):
    """One turn in tokens: what it read, what was written in it (forced tokens included), what the tool said to it."""

    read: int
    written: int
    observed: int


def steps_of(trajectory: Trajectory) -> list[Step]:
    return [
        Step(len(turn.prompt_ids), len(turn.own_ids), len(turn.observation) if turn.observation else 0)
        for turn in trajectory.turns
    ]


def steps_of_line(line: Mapping[str, Any]) -> list[Step]:
    """The same from a whole line of a rollout file, without its sidecar.

    Raises:
        KeyError: the line holds no turns.
    """
    return [
        Step(
            turn["prompt"][1] + turn["prompt"][3],
            len(turn.get("forced", ())) + turn["generated"][1],
            sum(part[1] for part in turn.get("observation") or ()),
        )
        for turn in line["turns"]
    ]


def costs(steps: Sequence[Step]) -> dict[str, float]:
    return {
        "read_tokens": sum(step.read for step in steps),
        "written_tokens": sum(step.written for step in steps),
        "dependency": dependency(steps),
        "mem1_peak_tokens": mem1_peak(steps),
    }


def dependency(steps: Sequence[Step]) -> float:
    return sum((2 * step.read + step.written) * step.written / 2 for step in steps)


def mem1_peak(steps: Sequence[Step]) -> int:
    before = [0, *(step.written + step.observed for step in steps)]
    return max((old + step.written for old, step in zip(before, steps, strict=False)), default=0)
