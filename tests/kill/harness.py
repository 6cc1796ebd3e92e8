"""Kill a command again and again until it is done, and look at its files each time.

Most processes are forks of this one, which has everything imported that a command needs; a few are new interpreters.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from mempo.storage.stopping import SIGNALS
from tests.kill.child import CRASHED, Call, become

LIMIT_S = 600.0
"""No command here takes a tenth of it on a quiet machine."""
STOPS = {signal.SIGKILL: 0.5, signal.SIGTERM: 0.25, signal.SIGINT: 0.25}
AIMS = {"clock": 0.45, "change": 0.45, "byte": 0.05, "full disk": 0.05}
NEW_INTERPRETER, JUMPING = 0.1, 0.25
"""Shares of the processes that are new interpreters, and of those whose clock jumps."""

Words = tuple[str, ...]
_NOT_DURABLE = {"run/report.html", "run/commands.jsonl"}
"""Written after everything, and made again by `mempo view --html`."""


@dataclass(frozen=True)
class Work:
    """A command that works in a folder. `words(folder)` start it, or go on with it: what a user would type next.

    `done(folder)`: what is finished, by name; a kill may not take anything of it away. `whole(folder)`: asserts that
    whatever stands under a final name is whole. `same(folder, undisturbed)`: asserts that both ended alike.
    `prepare(folder)` puts what it reads into an empty folder.
    """

    name: str
    words: Callable[[Path], Words]
    done: Callable[[Path], frozenset[str]]
    same: Callable[[Path, Path], None]
    whole: Callable[[Path], None] = lambda folder: None
    prepare: Callable[[Path], None] = lambda folder: None


@dataclass
class Tally:
    """What was done to the commands, for the summary."""

    kills: Counter[str] = field(default_factory=Counter)
    aims: Counter[str] = field(default_factory=Counter)
    ended: int = 0
    processes: int = 0

    def lines(self) -> list[str]:
        def shown(counts: Counter[str]) -> str:
            return ", ".join(f"{count} {name}" for name, count in counts.most_common())

        return [
            f"{self.kills.total()} kills and failures ({shown(self.kills)}; aimed by {shown(self.aims)})",
            f"{self.processes} processes; {self.ended} commands came to their end and equal the undisturbed ones",
        ]


TALLY = Tally()


@dataclass(frozen=True)
class Ended:
    """`code` as of `subprocess`: negative for a signal."""

    code: int
    said: str

    @property
    def last_line(self) -> str:
        lines = [line for line in self.said.splitlines() if line.strip()]
        return lines[-1] if lines else ""


def run(call: Call, new: bool = False, stop: signal.Signals | None = None, after_s: float = 0.0) -> Ended:
    """The command's end. `stop` is sent `after_s` seconds from its start, unless it has ended; nothing of it is left
    running."""
    TALLY.processes += 1
    Path(call.log).unlink(missing_ok=True)
    code, started = None, time.monotonic()
    if new:
        words = [sys.executable, "-m", "tests.kill.child", call.as_json()]
        child = subprocess.Popen(words, cwd=Path(__file__).parents[2]).pid
    else:
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # a stop waits until the child is the command
        child = os.fork()
        if child == 0:
            become(call)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    try:
        while code is None and time.monotonic() - started < LIMIT_S:
            if stop is not None and time.monotonic() - started >= after_s:
                os.kill(child, stop)
                stop = None
            ended, status = os.waitpid(child, os.WNOHANG)
            code = os.waitstatus_to_exitcode(status) if ended else None
            if code is None:
                time.sleep(0.001 if stop is not None else 0.005)
    finally:
        if code is None:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    said = Path(call.log).read_text("utf-8", "replace") if Path(call.log).exists() else ""
    assert code is not None, f"not done within {LIMIT_S:g} s:\n{said[-2000:]}"
    assert_none_left(child)
    return Ended(code, said)


def assert_none_left(session: int) -> None:
    """Processes that a command started end with it."""
    until = time.monotonic() + 60
    while left := _in_session(session):
        assert time.monotonic() < until, f"processes {left} outlive their command"
        time.sleep(0.01)


def _in_session(session: int) -> list[int]:
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                status = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(status[3]) == session and status[0] not in "ZX":
                found.append(int(entry.name))
    return found


@dataclass(frozen=True)
class Undisturbed:
    """A command that nothing happened to: its folder, how long it took, how many changes of files it made, and its
    largest file."""

    folder: Path
    seconds: float
    changes: int
    largest_bytes: int


def undisturbed(work: Work, base: Path) -> Undisturbed:
    folder, count = base / "undisturbed" / "root", base / "changes"
    begin(work, folder)
    began = time.monotonic()
    call = Call(work.words(folder), str(folder), str(base / "log"), count_into=str(count))
    ended = run(call)
    assert ended.code == 0, ended.said
    work.whole(folder)
    largest = max(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return Undisturbed(folder, time.monotonic() - began, int(count.read_text()), largest)


def begin(work: Work, folder: Path) -> None:
    folder.mkdir(parents=True)
    work.prepare(folder)


def torment(work: Work, base: Path, kills: int, rng: random.Random) -> None:
    """Kill the command `kills` times in all, start it again each time, and compare its folder with that of an
    undisturbed one whenever it comes to its end; then another begins."""
    straight = undisturbed(work, base)
    # The same place for each, since some files name it.
    folder = base / "disturbed" / "root"
    begin(work, folder)
    done: frozenset[str] = frozenset()
    left = kills
    while True:
        call = Call(work.words(folder), str(folder), str(base / "log"))
        if rng.random() < JUMPING:
            call = replace(call, clock=rng.randrange(1000))
        new = rng.random() < NEW_INTERPRETER
        if left:
            ended, aim = _disturbed(call, straight, new, rng)
        else:
            ended, aim = run(call, new), ""
        what = f"{work.name}, kill {kills - left + 1}, {aim}, {call}: exit code {ended.code}\n{ended.said[-1200:]}"
        try:
            now = work.done(folder)
            assert done <= now, f"lost: {sorted(done - now)}"
            work.whole(folder)
            assert ended.code != CRASHED
            assert "Traceback" not in ended.said
            if is_complete(ended):
                work.same(folder, straight.folder)
                assert_no_leftovers(folder, straight.folder)
            elif ended.code == 2:
                assert aim == "full disk", "no command refuses to go on"
                assert_one_line(ended)
            else:
                _assert_stopped(ended)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{what}") from error
        done = now
        if is_complete(ended):
            TALLY.ended += 1
            if not left:
                return
            shutil.rmtree(folder)
            begin(work, folder)
            done = frozenset()
        else:
            TALLY.kills[_name(ended.code)] += 1
            TALLY.aims[aim] += 1
            left -= 1


def _disturbed(call: Call, straight: Undisturbed, new: bool, rng: random.Random) -> tuple[Ended, str]:
    stop = rng.choices(list(STOPS), list(STOPS.values()))[0]
    aim = rng.choices(list(AIMS), list(AIMS.values()))[0]
    match aim:
        case "clock":  # within what is left for most, which have begun before
            within_s = rng.uniform(0, straight.seconds) * (1 if new else 0.7)
            return run(call, new, stop, within_s), aim
        case "change":
            at = rng.randint(1, max(straight.changes * 2 // 3, 1))
            return run(replace(call, at_change=at, signal=stop), new), aim
        case _:
            bytes = rng.randint(1, straight.largest_bytes)
            return run(replace(call, file_bytes=bytes, dies=aim == "byte"), new), aim


def assert_one_line(ended: Ended) -> None:
    assert any(line.startswith("mempo: ") for line in ended.said.splitlines()), ended.said
    assert "Traceback" not in ended.said, ended.said


def is_complete(ended: Ended) -> bool:
    """Done now, or before: killed after all was done."""
    return ended.code == 0 or (ended.code == 2 and "is complete, nothing is left to do" in ended.last_line)


def _assert_stopped(ended: Ended) -> None:
    """By a signal at once; or having saved what was done, with a line that says so; or by Ctrl-C before it had begun or
    after it had ended."""
    if ended.code < 0:
        assert -ended.code in (*STOPS, signal.SIGXFSZ)
        return
    assert ended.code - 128 in (signal.SIGTERM, signal.SIGINT)
    said = f"mempo: stopped by {signal.Signals(ended.code - 128).name}; " in ended.said
    assert said or ended.code - 128 == signal.SIGINT


def _name(code: int) -> str:
    return "full disk" if code == 2 else signal.Signals(-code if code < 0 else code - 128).name


def names(folder: Path) -> set[str]:
    """Of all files below; Tantivy draws its own at random."""
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
    return {re.sub(r"[0-9a-f]{32}", "RANDOM", name) for name in found}


def assert_no_leftovers(folder: Path, straight: Path) -> None:
    there, expected = (names(one) - _NOT_DURABLE for one in (folder, straight))
    assert there == expected, f"more: {sorted(there - expected)}, less: {sorted(expected - there)}"
