"""Fading: memory advantages count as much as the outcome is silent.

Where all scores of a group are equal, notes are all there is to learn from; where the outcome tells rollouts apart, it
needs no help, and the dense signal of the notes would drown it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mempo.errors import UserError


def fade(silence: Sequence[float], silent: Sequence[bool], batches: int | None) -> tuple[float, tuple[float, ...]]:
    """The factor of the memory weight, and the shares of silent groups to remember.

    The factor is the mean share of silent groups, those whose scores are all equal, over the last `batches` batches,
    this one (`silent` `[groups]`) included; 1 with `batches` None. So it is full where the outcome says nothing, and
    zero where it tells rollouts apart in every group.
    """
    if batches is None:
        return 1.0, ()
    share = [sum(silent) / len(silent)] if silent else []
    kept = (*silence, *share)[-batches:]
    return sum(kept) / len(kept) if kept else 1.0, kept


def silence_logged(lines: Iterable[Mapping[str, Any]], step: int, batches: int | None) -> tuple[float, ...]:
    """What `fade` had to remember after `step`, from the lines of a run's `metrics.jsonl`.

    Raises:
        UserError: there is no line of one of the steps that it hangs on.
    """
    if batches is None:
        return ()
    found = {line["step"]: line for line in lines if line["stage"] == "rl"}
    wanted = range(max(step - batches, 0) + 1, step + 1)
    if missing := [n for n in wanted if n not in found]:
        raise UserError(
            f"memory.fade_batches is {batches}, but metrics.jsonl of the run has no line of step {missing[0]}, so the "
            "weight of the memory advantages is not known; put the file back, or set memory.fade_batches=null"
        )
    shares = (found[n].get("advantages/zero_spread_groups") for n in wanted)
    return tuple(share for share in shares if share is not None)
