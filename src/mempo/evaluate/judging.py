"""Verdicts of a model on saved answers, kept beside the rollouts: `NAME.judge.jsonl`, a line a rollout.

Nothing is asked twice: a rollout that has a verdict on the answer it has keeps it. Where the judge gave none, it is
asked again the next time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from mempo.progress import Progress
from mempo.rewards.rollout_metrics import counts
from mempo.rollout.question import as_gold
from mempo.storage.files import append_line

_AT_ONCE = 64


def judge_file(file: Path, lines: Sequence[Mapping[str, Any]], settings: Any, console: Console) -> int:
    """Ask the judge about every rollout that counts with a gold answer that has no verdict; how many were asked about.

    `settings`: `mempo.evaluate.llm_judge.JudgeSettings`.

    Raises:
        UserError: the judge's server does not answer, or refuses the key.
    """
    from mempo.evaluate.llm_judge import Asked, open_judge  # its libraries are for those who use it

    waiting = [line for line in lines if counts(line) and line["gold"] is not None and line.get("judge") is None]
    if not waiting:
        return 0
    target = file.with_suffix(".judge.jsonl")
    silent = 0
    with open_judge(settings, console) as judge, Progress(console, "judge", len(waiting), "answer") as progress:
        for first in range(0, len(waiting), _AT_ONCE):
            group = waiting[first : first + _AT_ONCE]
            asked = [Asked(str(line.get("question") or ""), as_gold(line["gold"]), line["answer"]) for line in group]
            for line, found in zip(group, judge.judge(asked), strict=True):
                value = None if found.verdict is None else float(found.verdict == "correct")
                silent += value is None
                about = {key: line[key] for key in ("question_id", "rollout", "answer")}
                append_line(target, {**about, "judge": value, "reason": found.reason})
            progress.step(min(first + _AT_ONCE, len(waiting)), f"no verdict {silent}")
    return len(waiting)
