"""One command of mempo in a process of its own, to which something happens at a moment that is known exactly.

Python tells an audit hook of every file that is about to be opened, renamed or removed, so a signal can be sent at the
n-th change of the command's files, inside checkpoint writes and removals too. `python -m tests.kill.child JSON` does
the same in a new interpreter that a fork of this one does.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

CRASHED = 70
"""Exit code of a command that ended with an exception, which none may."""
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_MOVES = frozenset({"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate"})
_JUMPS_S = (0, 0, 5 * 3600, -5 * 3600, 400 * 86400, -400 * 86400)
_PAST_PERMISSIONS = 0b110
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH."""


@dataclass(frozen=True)
class Call:
    """`words` of mempo with `root` as working folder, in which all its files lie; what it says goes into `log`.

    At its `at_change`-th change of a file: `signal` is sent to itself, or with `shut` every folder becomes read-only.
    `file_bytes`: no file may grow beyond; a full disk, or with `dies` the end of the process in the middle of a write.
    `clock`: seed of a clock that jumps by hours and years. `count_into`: where the number of changes is written.
    """

    words: tuple[str, ...]
    root: str
    log: str
    at_change: int | None = None
    signal: int | None = None
    shut: bool = False
    file_bytes: int | None = None
    dies: bool = False
    clock: int | None = None
    count_into: str | None = None

    def as_json(self) -> str:
        return json.dumps(asdict(self))


def become(call: Call) -> NoReturn:
    """The rest of this process is the command."""
    code = CRASHED
    try:
        os.setsid()
        _speak_into(call.log)
        os.chdir(call.root)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background may ignore it
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if call.clock is not None:
            _let_the_clock_jump(call.clock)
        if call.shut:
            _heed_permissions()
        if call.file_bytes is not None:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL if call.dies else signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (call.file_bytes, resource.RLIM_INFINITY))
        changes = _Changes(call)
        code = _run(call.words)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command has ended
        if call.count_into is not None:
            Path(call.count_into).write_text(str(changes.count))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run(words: tuple[str, ...]) -> int:
    sys.argv = ["mempo", *words]
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))  # what came until now comes here
        from mempo.cli.main import main
    except KeyboardInterrupt:  # the command has not begun
        return 128 + signal.SIGINT
    try:
        main()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    return 0


class _Changes:
    """Counts changes of files below `root`, and does what is to be done at one of them."""

    def __init__(self, call: Call) -> None:
        self._root = call.root + os.sep
        self._call, self._process = call, os.getpid()
        self.count = 0
        if call.at_change is not None or call.count_into is not None:
            sys.addaudithook(self._heard)

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if not isinstance(flags, int) or not flags & _WRITES:
                return
        elif event in _MOVES:
            path = arguments[0]
        else:
            return
        path = os.fsdecode(path) if isinstance(path, str | bytes) or hasattr(path, "__fspath__") else ""
        # What is removed with a whole folder is named by the folder's handle.
        if not path.startswith(self._root) and os.path.isabs(path):
            return
        if os.getpid() != self._process:
            return
        self.count += 1
        if self.count == self._call.at_change:
            if self._call.signal is not None:
                os.kill(self._process, self._call.signal)
            if self._call.shut:
                each_folder(Path(self._call.root), lambda folder: os.chmod(folder, 0o555))


def each_folder(root: Path, do: Callable[[str], None]) -> None:
    for folder, _, _ in os.walk(root):
        do(folder)


def _speak_into(log: str) -> None:
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    # A parent that captures its own output has put something else in their place.
    sys.stdout = sys.__stdout__ = open(1, "w", buffering=1, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, encoding="utf-8", closefd=False)  # noqa: SIM115


def _let_the_clock_jump(seed: int) -> None:
    rng, real = random.Random(seed), time.time
    time.time = lambda: real() + rng.choice(_JUMPS_S)


def _heed_permissions() -> None:
    """Root may write into a folder that nobody may write into, unless it gives that up."""
    if os.geteuid():
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    if libc.capget(header, sets):
        raise OSError(ctypes.get_errno(), "capget")
    for place in (0, 1):  # effective, permitted
        sets[place] &= ~_PAST_PERMISSIONS
    if libc.capset(header, sets):
        raise OSError(ctypes.get_errno(), "capset")


if __name__ == "__main__":
    fields = json.loads(sys.argv[1])
    become(Call(**{**fields, "words": tuple(fields["words"])}))
