"""Folders and files that are whole or absent: written under a temporary name, renamed when done."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mempo.errors import UserError

_RACES = 100


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """Yields an empty folder beside `target`; when the block ends well it takes the place of `target`.

    When the block raises, `target` is as it was. Of two writers at once the last one wins; they never mix. What a
    writer that was killed left behind is swept away by the next one.
    """
    target = Path(os.path.realpath(target))  # of a link, the folder it names is replaced
    _sweep(target)
    temporary = _beside(target, "tmp")
    temporary.mkdir(parents=True)
    try:
        yield temporary
        for path in temporary.rglob("*"):
            if path.is_file():
                _sync(path)
        _put(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def one_writer(target: Path) -> Iterator[None]:
    """Writers of neighbouring targets, in threads or processes, go one after another: their folder is locked."""
    parent = Path(os.path.realpath(target)).parent
    parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(parent, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextmanager
def lone_process(folder: Path, cannot: Callable[[Exception], str], busy: str) -> Iterator[Path]:
    """One process at a time in a folder, which is made; yields the lock file. The lock goes with the process.

    Raises:
        UserError: `cannot(error)` where the folder cannot be written, `busy` where another process has it.
    """
    lock = folder / ".lock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = lock.open("a")
    except (OSError, ValueError) as error:
        raise UserError(cannot(error)) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(busy) from None
        yield lock


@contextmanager
def whole_file(target: Path) -> Iterator[Path]:
    """Yields a temporary path beside `target`; the file written there takes its place when the block ends well."""
    temporary = _beside(target, "tmp")
    try:
        yield temporary
        _sync(temporary)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def remove_whole(folder: Path) -> None:
    """Remove a folder; it loses its name first, so a kill in between leaves no half of it under that name."""
    hidden = _beside(folder, "old")
    os.rename(folder, hidden)
    shutil.rmtree(hidden)


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _put(folder: Path, target: Path) -> None:
    # A folder cannot replace a full one in a single step, so the old one steps aside first; another writer may put
    # its own there in between, which then is the old one.
    old = _beside(target, "old")
    for attempt in range(_RACES):
        try:
            os.rename(folder, target)
            break
        except OSError:
            if not target.exists() or attempt == _RACES - 1:
                if old.exists() and not target.exists():
                    os.rename(old, target)
                raise
            shutil.rmtree(old, ignore_errors=True)
            try:
                os.rename(target, old)
            except FileNotFoundError:
                continue
    shutil.rmtree(old, ignore_errors=True)


def _sweep(target: Path) -> None:
    """Remove the temporary folders of this target whose process is gone; their names hold its number."""
    for left in target.parent.glob(f".{target.name}.*-*-*"):
        number = left.name.split("-")[-2]
        if number.isdigit() and left.is_dir() and not _is_running(int(number)):
            shutil.rmtree(left, ignore_errors=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _beside(target: Path, word: str) -> Path:
    return target.parent / f".{target.name}.{word}-{os.getpid()}-{secrets.token_hex(4)}"
