"""Worker processes, each of which does one task after another: what a process costs to start is paid once."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, Generic, TypeVar

from mempo.storage.stopping import Stopped, stoppable

T = TypeVar("T")
R = TypeVar("R")

_SPAWN = multiprocessing.get_context("spawn")  # torch has threads, which a fork would lose
_GRACE_S = 60.0
"""An update of a real model ends and its checkpoint is written."""


class Died(Exception):
    """A worker ended in the middle of its task; `code` is its exit code, negative for a signal."""

    def __init__(self, code: int | None) -> None:
        super().__init__(f"its process ended with code {code}")


def make_pool(workers: int, work: Callable[[T], R]) -> ProcessPool[T, R] | InProcess[T, R]:
    """With one worker, this process does the work."""
    return ProcessPool(workers, work) if workers > 1 else InProcess(work)


class InProcess(Generic[T, R]):
    """One task at a time, in this process, done when its result is asked for. `room`: another can be given now."""

    def __init__(self, work: Callable[[T], R]) -> None:
        self._work = work
        self._waiting: deque[T] = deque()

    @property
    def room(self) -> bool:
        return not self._waiting

    @property
    def busy(self) -> bool:
        return bool(self._waiting)

    def give(self, task: T) -> None:
        self._waiting.append(task)

    def next_done(self) -> tuple[T, R | Died]:
        task = self._waiting.popleft()
        return task, self._work(task)

    def __enter__(self) -> InProcess[T, R]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._waiting.clear()


class ProcessPool(Generic[T, R]):
    """`workers` processes, begun when there is something to do; one that dies is replaced by the next task's."""

    def __init__(self, workers: int, work: Callable[[T], R]) -> None:
        self._count, self._work = workers, work
        self._idle: list[tuple[BaseProcess, Connection]] = []
        self._at_work: list[tuple[BaseProcess, Connection, T]] = []

    @property
    def room(self) -> bool:
        return len(self._at_work) < self._count

    @property
    def busy(self) -> bool:
        return bool(self._at_work)

    def give(self, task: T) -> None:
        while self._idle:
            process, connection = self._idle.pop()
            try:
                connection.send(task)
            except OSError:  # it was killed while it had nothing to do
                connection.close()
                process.join()
                continue
            self._at_work.append((process, connection, task))
            return
        process, connection = self._begin()
        connection.send(task)
        self._at_work.append((process, connection, task))

    def next_done(self) -> tuple[T, R | Died]:
        ready = wait([connection for _, connection, _ in self._at_work])
        place = next(i for i, (_, connection, _) in enumerate(self._at_work) if connection in ready)
        process, connection, task = self._at_work.pop(place)
        try:
            result: R = connection.recv()
        except (EOFError, OSError):
            connection.close()
            process.join()
            return task, Died(process.exitcode)
        self._idle.append((process, connection))
        return task, result

    def _begin(self) -> tuple[BaseProcess, Connection]:
        here, there = _SPAWN.Pipe()
        process = _SPAWN.Process(target=_serve, args=(there, self._work), daemon=True)
        process.start()
        there.close()  # else a worker that dies would never be noticed
        return process, here

    def __enter__(self) -> ProcessPool[T, R]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        running = [(process, connection) for process, connection, _ in self._at_work]
        for _, connection in self._idle:
            connection.close()  # a worker without work ends
        if kind is not None and issubclass(kind, KeyboardInterrupt):  # the workers save what they have
            if isinstance(error, Stopped) and error.number == signal.SIGTERM:  # Ctrl-C reaches them by itself
                for process, _ in running:
                    process.terminate()
            for process, _ in running:
                process.join(_GRACE_S)
        for process, connection in running:
            process.kill()
            connection.close()
        for process, _ in (*self._idle, *running):
            process.join()


def _serve(connection: Connection, work: Callable[[Any], Any]) -> None:
    """A worker: do what comes, until nothing more can come."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    with stoppable(lambda: "its run is saved"):
        try:
            while True:
                connection.send(work(connection.recv()))
        except (EOFError, OSError, KeyboardInterrupt):
            return  # quietly: the parent says what there is to say


def _end_with(sentinel: int) -> None:
    """A worker whose parent was killed ends too: the next process resumes its run."""
    wait([sentinel])
    os._exit(1)
