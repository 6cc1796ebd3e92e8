"""A rollout file by offset: a small row for each of its lines, and one whole line when it is asked for.

Rows are made once, of the lines without their tokens, and a file that grows is read on from where it ended. The token
arrays beside it are mapped, so that looking at a rollout reads its own arrays alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from mempo.evaluate.saved import BESIDE, join_beside, read_beside
from mempo.rollout.protocol import ACTION_TAGS, RESERVED_TAGS, TurnGrammar, can_be_tag
from mempo.rollout.question import objectives_of
from mempo.rollout.tokenizer import Tokenizer
from mempo.rollout.trajectory import Trajectory
from mempo.storage.append import REMEDY, ROLLOUT, items_end, parse_facts
from mempo.storage.read_files import parse_line, reading
from mempo.storage.rollouts import tokens_path, trajectory_of

GOOD_P = 0.5
"""A note is called good where the policy gives the gold answer at least this probability after it."""


@dataclass(frozen=True, slots=True)
class Row:
    """What lists show of a rollout. `number`: its place in the file; `first`: the number of its question's first
    rollout. `right` None: nothing can be said. `p_note`: P(mem) of the last note that was scored; `r` mean reward of
    its notes."""

    number: int
    first: int
    question_id: str
    question: str
    rollout: int
    answer: str | None
    stop: str
    is_error: bool
    right: bool | None
    score: float | None
    advantage: float | None
    p_note: float | None
    r: float | None
    note_tokens: int
    turns: int
    broken_rules: tuple[str, ...]
    tool_errors: int

    @property
    def good_note(self) -> bool | None:
        return None if self.p_note is None else self.p_note >= GOOD_P


class RolloutFile:
    """Rollouts of one file, in the order of their questions. Safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, path.stem
        self._lock = Lock()
        self._forget()

    def _forget(self) -> None:
        self._end = 0  # bytes that were read
        self._inode = -1
        self._spans: list[tuple[int, int]] = []  # bytes of each line
        self._rows: dict[tuple[str, int], Row] = {}
        self._first: dict[str, int] = {}
        self._beside: dict[str, dict[tuple[str, int], dict[str, Any]]] = {}
        self._beside_stamps: dict[str, tuple[int, int]] = {}
        self._actions: set[str] = set()
        self._mapped: np.ndarray | None = None

    def rows(self) -> list[Row]:
        """A row for each rollout; of two lines with one key the later one. Raises DamagedFile."""
        with self._lock:
            self._read_on()
            return sorted(self._rows.values(), key=lambda row: (row.first, row.rollout, row.number))

    def group(self, first: int) -> list[Row]:
        return [row for row in self.rows() if row.first == first]

    def facts(self, number: int) -> dict[str, Any]:
        """The whole line, with what stands beside the file. Raises LookupError: there is no such line."""
        if not 0 <= number < len(self._spans):
            self.rows()
        with self._lock:
            start, stop = self._spans[number] if 0 <= number < len(self._spans) else (0, 0)
            if not stop:
                raise LookupError(f"{self.name} has no rollout {number}")
            with reading(self.path, REMEDY), self.path.open("rb") as file:
                file.seek(start)
                line = parse_line(file.read(stop - start), self.path, number + 1, ROLLOUT, REMEDY)
            return self._joined(line)

    def trajectory(self, line: Mapping[str, Any], tokenizer: Tokenizer) -> tuple[Trajectory, dict[int, list[float]]]:
        """The rollout of a line with its token arrays, and its advantages `{turn: [generated]}`. Raises DamagedFile."""
        with self._arrays(line) as ints:
            floats = ints.view("<f4")
            trajectory = trajectory_of(line, ints, floats, tokenizer, self._grammar())
            places = {t: turn["advantages"] for t, turn in enumerate(line["turns"]) if "advantages" in turn}
            return trajectory, {t: floats[a : a + n].tolist() for t, (a, n) in places.items()}

    def texts(self, number: int, tokenizer: Tokenizer) -> list[str]:
        """What was written and what came back, turn by turn, without taking it apart. Raises DamagedFile."""
        line = self.facts(number)
        with self._arrays(line) as ints:
            return [tokenizer.decode(_ids(ints, t["generated"])) for t in line["turns"]] + [
                "".join(tokenizer.decode(_ids(ints, part)) for part in t.get("observation") or ())
                for t in line["turns"]
            ]

    def has_copied_note(self, number: int) -> bool:
        """Whether a note has the tokens of the one before it. Raises DamagedFile."""
        line = self.facts(number)
        with self._arrays(line) as ints:
            notes = [_ids(ints, turn["note_ids"]) for turn in line["turns"] if turn.get("note_ids")]
        return any(before == after for before, after in pairwise(notes))

    @contextmanager
    def _arrays(self, line: Mapping[str, Any]) -> Iterator[np.ndarray]:
        """The token arrays, mapped, as int32 `[items]`; those of the line are in them."""
        path = tokens_path(self.path)
        with reading(path, REMEDY):
            items = path.stat().st_size // 4
            if items_end(line) > items:
                raise ValueError("it ends before the arrays of this rollout")
            if self._mapped is None or len(self._mapped) != items:
                self._mapped = np.memmap(path, "<i4", "r", shape=(items,)).view(np.ndarray)
            yield self._mapped

    def _grammar(self) -> TurnGrammar:
        """Actions are those that the rollouts tell of: to look at a run, nothing of its own code is loaded."""
        return TurnGrammar("optional", "optional", tuple(sorted({*ACTION_TAGS, *self._actions})))

    def _read_on(self) -> None:
        status = self.path.stat()
        if status.st_size < self._end or status.st_ino != self._inode:  # written again
            self._forget()
            self._inode = status.st_ino
        changed = self._read_beside()
        if status.st_size == self._end and not changed:
            return
        if changed:
            self._end, self._spans, self._rows, self._first = 0, [], {}, {}
        for start, line in self._new_lines():
            number = len(self._spans)
            facts = self._joined(parse_facts(line, self.path, number + 1))
            self._spans.append((start, start + len(line)))
            self._end = start + len(line)
            with reading(self.path, REMEDY):
                first = self._first.setdefault(facts["question_id"], number)
                row = row_of(facts, number, first)
            self._rows[row.question_id, row.rollout] = row
            self._actions.update(name for name in _mapping(facts.get("actions")) if _is_action(name))

    def _new_lines(self) -> Iterator[tuple[int, bytes]]:
        with self.path.open("rb") as file:
            start = file.seek(self._end)
            for line in file:
                if line.endswith(b"\n"):
                    yield start, line
                start += len(line)

    def _read_beside(self) -> bool:
        """Rewards and verdicts in `NAME.notes.jsonl` and the like; whether there is anything new in them."""
        changed = False
        for kind in BESIDE:
            path = self.path.with_suffix(f".{kind}.jsonl")
            stamp = (path.stat().st_size, path.stat().st_mtime_ns) if path.is_file() else (0, 0)
            if stamp != self._beside_stamps.get(kind, (0, 0)):
                lines = read_beside(self.path, kind)
                self._beside[kind] = {(line["question_id"], line["rollout"]): line for line in lines}
                self._beside_stamps[kind] = stamp
                changed = True
        return changed

    def _joined(self, line: dict[str, Any]) -> dict[str, Any]:
        for kind, records in self._beside.items():
            join_beside(line, kind, records.get((line["question_id"], line.get("rollout", 0))))
        return line


def _ids(ints: np.ndarray, place: Sequence[int]) -> list[int]:
    return ints[place[0] : place[0] + place[1]].tolist()


def row_of(facts: Mapping[str, Any], number: int, first: int) -> Row:
    """The row of a line; whatever is missing or of another kind is not known."""
    notes = [note for note in facts.get("notes") or () if isinstance(note, Mapping)]
    ps = [p for p in map(p_of, notes) if p is not None]
    rs = [r for r in (known(note.get("r")) for note in notes) if r is not None]
    em = known(facts.get("em"))
    is_error = bool(facts.get("is_error"))
    lengths = [n for n in facts.get("note_tokens") or () if isinstance(n, int)]
    return Row(
        number=number,
        first=first,
        question_id=facts["question_id"],
        question=str(facts.get("question") or "")[:400],
        rollout=int(facts.get("rollout", 0)),
        answer=None if facts.get("answer") is None else str(facts["answer"])[:400],
        stop=str(facts.get("stop", ""))[:40],
        is_error=is_error,
        right=None if em is None or is_error else em >= 1,
        score=known(facts.get("score")),
        advantage=known(facts.get("advantage")),
        p_note=ps[-1] if ps else None,
        r=sum(rs) / len(rs) if rs else None,
        note_tokens=max(lengths, default=0),
        turns=int(known(facts.get("num_turns")) or 0),
        broken_rules=tuple(map(str, _mapping(facts.get("violations")))),
        tool_errors=int(known(facts.get("tool_errors")) or 0),
    )


def p_of(note: Mapping[str, Any]) -> float | None:
    """P(gold answer | note), without a threshold where that was saved."""
    raw = known(note.get("p_mem_raw"))
    return known(note.get("p_mem")) if raw is None else raw


def known(value: Any) -> float | None:
    """A finite number; None for everything else."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) else None


def gold_answers(facts: Mapping[str, Any]) -> list[str]:
    """Every alias of every objective."""
    try:
        return [alias for aliases in objectives_of(facts.get("gold")) for alias in aliases if isinstance(alias, str)]
    except (TypeError, LookupError):
        return []


def _is_action(name: Any) -> bool:
    return isinstance(name, str) and can_be_tag(name) and name not in RESERVED_TAGS


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
