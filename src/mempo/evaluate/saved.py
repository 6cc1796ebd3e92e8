"""Rollouts read back from their small lines, and scored again."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from mempo.config.rewards import OutcomeSettings
from mempo.evaluate.predictions import read_predictions
from mempo.evaluate.rescore import filled, rescored
from mempo.storage.append import REMEDY, Key, latest, read_facts
from mempo.storage.read_files import exists, read_lines, reading
from mempo.storage.rollouts import tokens_path


class Remark(TypedDict):
    """A line about the answer of a rollout."""

    question_id: str
    rollout: int
    answer: str | None


class NotesLine(Remark):
    """The memory reward of its notes."""

    notes: list[dict[str, Any]]


class JudgeLine(Remark):
    """What a judge says of it; None: no verdict."""

    judge: float | None


BESIDE: dict[str, TypeAdapter[Any]] = {"notes": TypeAdapter(NotesLine), "judge": TypeAdapter(JudgeLine)}
"""`{kind: form of a line of NAME.kind.jsonl}`."""


def scored_lines(path: Path, scorers: Sequence[str], settings: OutcomeSettings) -> list[dict[str, Any]]:
    """The rollouts of a file, scored again; raises as `read_rollouts` and `rescored` do."""
    lines = read_rollouts(path).values()
    with reading(path, REMEDY):
        return list(rescored(lines, scorers, settings))


def read_rollouts(path: Path) -> dict[Key, dict[str, Any]]:
    """The rollouts of a file by key, joined with what lies beside it (`NAME.notes.jsonl`, `NAME.judge.jsonl`).

    Raises:
        UserError: a line without question id or answer, a row of another program that cannot be used; DamagedFile: a
            line of ours that is no rollout.
    """
    if not exists(path):
        return {}
    with reading(path, REMEDY):
        own = tokens_path(path).exists()
        rows = read_facts(path, whole=_lacks_costs(path)) if own else read_predictions(path)
        lines = latest(map(filled, rows))
    for line in () if own else lines.values():  # without its arrays they say nothing
        for key in ("question_ids", "turns"):
            line.pop(key, None)
    for kind in BESIDE:
        for record in read_beside(path, kind):
            if line := lines.get((record["question_id"], record["rollout"])):
                join_beside(line, kind, record)
    return lines


def join_beside(line: dict[str, Any], kind: str, record: Mapping[str, Any] | None) -> None:
    """Put what was said beside the file about a rollout into its line, unless the rollout has been made again since:
    then it is about another answer."""
    if record is not None and record.get("answer") == line.get("answer"):
        line[kind] = record[kind]


def read_beside(path: Path, kind: str) -> list[dict[str, Any]]:
    """The lines of `NAME.kind.jsonl` beside a rollout file. Raises DamagedFile."""
    remedy = f"take that line out, or remove the file and its {kind} are asked for again"
    return read_lines(path.with_suffix(f".{kind}.jsonl"), BESIDE[kind], remedy)


def _lacks_costs(path: Path) -> bool:
    """Rollouts of a training step, or of an older version: their costs are counted from their turns."""
    first = next(read_facts(path), None)
    return first is not None and "dependency" not in first


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """Lines by the hundred thousand all stay: the garbage collector would look at all of them again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
