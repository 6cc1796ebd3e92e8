"""`report.html`: a run or an evaluation in one file that can be mailed; what `mempo view --html` writes too."""

from __future__ import annotations

import platform
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console

from mempo import __version__
from mempo.config.addresses import masked
from mempo.errors import UserError
from mempo.progress import say
from mempo.storage.files import append_line, write_atomic
from mempo.storage.read_files import exists
from mempo.view.curves import curves
from mempo.view.folder import TABLE_HEAD, ViewedFolder, open_folders
from mempo.view.pages import render_file
from mempo.view.rollouts import RolloutFile, Row
from mempo.view.turns import TurnView, turns_of

TELLING = 5
_OURS = '<meta name="generator" content="mempo view">'
_LIBRARIES = ("torch", "transformers", "tokenizers", "numpy", "vllm", "verl")


@dataclass(frozen=True)
class Told:
    """A rollout of the report, and why it was chosen."""

    why: str
    where: str
    row: Row
    facts: dict[str, Any]
    turns: list[TurnView]


def write_report(runs: Sequence[Path], file: Path, tokenizer: str | None = None) -> None:
    """Write the report of some folders.

    Raises:
        UserError: a folder is no run, or `file` is there and not a report of ours; nothing is written then.
    """
    if exists(file) and not _is_ours(file):
        raise UserError(f"{file} is there, and no report that mempo wrote; name another file")
    folders = open_folders(runs, tokenizer)
    told, problems = [], []
    try:
        told = telling(folders[0])
    except UserError as error:  # the numbers are worth a report without texts
        problems.append(str(error))
    context = {
        "folders": folders,
        "curves": curves(folders),
        "head": TABLE_HEAD,
        "told": told,
        "problems": problems,
        "versions": versions(),
        "when": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }
    # A lone surrogate, which JSON can hold, is made visible everywhere; what is left cannot be written.
    write_atomic(file, render_file("report.html", **context).encode("utf-8", "replace"))


def _is_ours(file: Path) -> bool:
    return file.is_file() and _OURS in file.read_bytes()[:1000].decode("utf-8", "replace")


def telling(folder: ViewedFolder) -> list[Told]:
    """At most `TELLING` rollouts of the newest file that show what the agent does and where it fails."""
    files = list(folder.files().values())
    if not files:
        return []
    named = [file for file in files if file.name == "evaluation-final"]
    file = (named or files)[-1]
    found = []
    for why, row in _picked(file):
        found.append(Told(why, folder.agent_name(file.name), row, *turns_of(file, row.number, folder.tokenizer())))
    return found


def _picked(file: RolloutFile) -> list[tuple[str, Row]]:
    rows = [row for row in file.rows() if not row.is_error]
    wanted = (
        ("right, with the best note", [r for r in rows if r.right], _goodness),
        ("wrong although the note was good", [r for r in rows if r.right is False and r.good_note], _goodness),
        ("wrong, with the worst note", [r for r in rows if r.right is False and r.p_note is not None], _badness),
        ("format broken", [r for r in rows if r.broken_rules], lambda r: len(r.broken_rules)),
        ("the longest note", [r for r in rows if r.note_tokens], lambda r: r.note_tokens),
        ("right although the note was bad", [r for r in rows if r.right and r.good_note is False], _badness),
        ("the most turns", rows, lambda r: r.turns),
    )
    found: list[tuple[str, Row]] = []
    for why, candidates, key in wanted:
        left = [row for row in candidates if row not in [known for _, known in found]]
        if left:
            found.append((why, max(left, key=key)))
    return found[:TELLING]


def _goodness(row: Row) -> float:
    return row.p_note or 0.0


def _badness(row: Row) -> float:
    return -_goodness(row)


def versions() -> dict[str, str]:
    """Of mempo, Python and what computes."""
    found = {"mempo": __version__, "Python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


@contextmanager
def reported(folder: Path, console: Console) -> Iterator[None]:
    """Around a command that works on a folder: its line and versions are added to `commands.jsonl`, unless it was
    refused, and where it ends well `report.html` is written. Neither ever makes the command fail."""
    try:
        yield
    except UserError:
        raise
    except BaseException:  # stopped, with work done
        _record(folder, console)
        raise
    _record(folder, console)
    try:
        write_report([folder], folder / "report.html")
    except Exception as error:
        _not_written("report.html", error, console)


def _record(folder: Path, console: Console) -> None:
    try:
        if (folder / "config.yaml").is_file():
            line = masked(shlex.join(["mempo", *sys.argv[1:]]))
            ended = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
            append_line(folder / "commands.jsonl", {"command": line, "ended": ended, "versions": versions()})
    except Exception as error:
        _not_written("commands.jsonl", error, console)


def _not_written(name: str, error: Exception, console: Console) -> None:
    say(console, f"note: {name} was not written ({error})")
