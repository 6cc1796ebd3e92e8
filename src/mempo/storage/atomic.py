"""Folders and files that are whole or absent: written under a temporary name, renamed when done.

Beside a target `NAME` there can be, for a moment or after a kill, `.NAME.WORD-PROCESS-RANDOM`. The word says what it
is: `tmp` is being written, `old` is being removed, `aside` was moved out of the way and goes back when `NAME` is gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mempo.errors import UserError

_RACES = 100
_HERE, _EXCHANGE = -100, 2
"""AT_FDCWD and RENAME_EXCHANGE of renameat2."""
_LEFT = re.compile(r"\.(?P<name>.+)\.(?P<word>tmp|old|aside)-(?P<process>\d+)-[0-9a-f]{4,8}")
_BEGAN = time.time()
_STALE_S = 3600.0
"""A process number may belong to another process by now: what nobody touched for so long is left over all the same."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@contextmanager
def full_disk_names(path: Path) -> Iterator[None]:
    """A disk that fills up, or a limit on the size of files, does not say what could not be written; this does. Of
    several within each other the outermost has its way: what lies inside has a temporary name."""
    try:
        yield
    except OSError as error:
        if error.errno is None and " requested and " in str(error):  # so NumPy says it
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from error
        if error.errno in _FULL:
            error.filename = str(path)
        raise


@contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """Yields an empty folder beside `target`; when the block ends well it takes the place of `target`.

    When the block raises, `target` is as it was. Of two writers at once the last one wins; they never mix. What a
    writer that was killed left behind is swept away by the next one.
    """
    target = Path(os.path.realpath(target))  # of a link, the folder it names is replaced
    _sweep(target)
    temporary = _beside(target, "tmp")
    temporary.mkdir(parents=True)
    try:
        with full_disk_names(target):
            yield temporary
        for path in temporary.rglob("*"):
            if path.is_file():
                _sync(path)
        _put(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def temporary_folder(target: Path) -> Iterator[Path]:
    """Yields an empty folder beside `target`, which is gone when the block ends, and so are folders above it that were
    made for it and are empty."""
    _sweep(target)
    temporary = _beside(target, "tmp")
    made = [parent for parent in temporary.parents if not parent.exists()]
    temporary.mkdir(parents=True)
    try:
        with full_disk_names(target):
            yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        for parent in made:
            with contextlib.suppress(OSError):
                parent.rmdir()


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
    """One process at a time in a folder, which is made; yields the lock file. The lock goes with the process. What a
    killed one left half-written anywhere in the folder is swept away first.

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
        sweep(folder)
        yield lock


@contextmanager
def atomic_file(target: Path) -> Iterator[Path]:
    """Yields a temporary path beside `target`; the file written there takes its place when the block ends well."""
    _sweep(target)
    temporary = _beside(target, "tmp")
    try:
        with full_disk_names(target):
            yield temporary
        _sync(temporary)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def remove_atomic(folder: Path) -> None:
    """Remove a folder; it loses its name first, so a kill in between leaves no half of it under that name. What an
    earlier removal that was killed left behind goes too."""
    _sweep(folder)
    hidden = _beside(folder, "old")
    os.rename(folder, hidden)
    shutil.rmtree(hidden)


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _put(folder: Path, target: Path) -> None:
    if target.is_dir() and _exchanged(folder, target):
        return
    # Where a folder cannot replace a full one in a single step, the old one steps aside first; another writer may put
    # its own there in between, which then is the old one.
    aside = _beside(target, "aside")
    for attempt in range(_RACES):
        try:
            os.rename(folder, target)
            break
        except OSError:
            if not target.exists() or attempt == _RACES - 1:
                if aside.exists() and not target.exists():
                    os.rename(aside, target)
                raise
            shutil.rmtree(aside, ignore_errors=True)
            try:
                os.rename(target, aside)
            except FileNotFoundError:
                continue
    shutil.rmtree(aside, ignore_errors=True)


def _exchanged(one: Path, other: Path) -> bool:
    """Let two folders change places in a single step, so that neither name is missing for a moment; False: this system
    cannot, or another writer was faster."""
    try:
        exchange = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError, TypeError):  # not Linux, or an old one
        return False
    return exchange(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0


def sweep(folder: Path) -> None:
    """Remove everything that killed writers left in `folder` and below; of use where nobody else is at work."""
    for parent, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            if (left := _LEFT.fullmatch(name)) and _clear(Path(parent, name), left):
                folders[:] = [other for other in folders if other != name]


def _sweep(target: Path) -> None:
    """The same for this target alone."""
    try:
        names = os.listdir(target.parent)
    except OSError:  # whoever writes will say it better
        return
    for name in names:
        if (left := _LEFT.fullmatch(name)) and left["name"] == target.name:
            _clear(target.parent / name, left)


def _clear(path: Path, left: re.Match[str]) -> bool:
    """Remove what a writer left behind that has ended, or put back what it had moved aside; whether it had ended."""
    with contextlib.suppress(OSError):  # another one sweeps too, or the folder may not be written
        if _is_at_work(int(left["process"]), path):
            return False
        target = path.parent / left["name"]
        if left["word"] == "aside" and not target.exists():
            os.rename(path, target)
        elif path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    return True


def _is_at_work(process: int, path: Path) -> bool:
    """Whether the process that a temporary name holds is still the one that made it. Numbers are given out again, in
    containers the same small ones all the time, so what was touched last tells too."""
    touched = max(p.lstat().st_mtime for p in (path, *(path.rglob("*") if path.is_dir() else ())))
    if process == os.getpid():
        return touched >= _BEGAN
    return _is_running(process) and time.time() - touched < _STALE_S


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
