"""Threads that do not keep a process from ending, whatever the server does that they wait for."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from contextlib import suppress
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
_Work = tuple[Future[Any], Callable[[], Any]]


class DaemonThreads(Executor):
    """At most `most` threads, started as they are needed. The standard library's pool is joined when Python ends, which
    a call that hangs would put off for ever; these are not."""

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name, self._started = most, name, 0
        self._lock = threading.Lock()
        self._idle = threading.Semaphore(0)
        self._queue: SimpleQueue[_Work | None] = SimpleQueue()
        self._end = weakref.finalize(self, self._queue.put, None)

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        context = copy_context()  # what is done here is done for the caller
        self._queue.put((future, lambda: context.run(fn, *args, **kwargs)))
        with self._lock:
            if not self._idle.acquire(blocking=False) and self._started < self._most:
                self._started += 1
                name = f"{self._name}_{self._started}"
                threading.Thread(target=_work, args=(self._queue, self._idle), name=name, daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """The threads end when they have nothing left to do; nobody waits for them."""
        self._end()


def _work(queue: SimpleQueue[_Work | None], idle: threading.Semaphore) -> None:
    while (work := queue.get()) is not None:
        future, call = work
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(call())
            except BaseException as error:  # it is the caller's, whatever it is
                future.set_exception(error)
        del work, future, call  # the result is not kept until the next call
        idle.release()
    queue.put(None)  # for the next thread


_LOOPS: dict[int, asyncio.AbstractEventLoop] = {}
_LOCK = threading.Lock()


def background_loop() -> asyncio.AbstractEventLoop:
    """The event loop of this process on which requests of plain functions run, in a thread of its own."""
    with _LOCK:
        loop = _LOOPS.get(os.getpid())  # a thread does not follow into a forked process
        if loop is None:
            _LOOPS[os.getpid()] = loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="mempo-http", daemon=True).start()
            atexit.register(_close_connections, os.getpid())
    return loop


def _close_connections(process: int) -> None:
    """As `asyncio.run` does at the end of a loop; a forked process has no part in it."""
    if process == os.getpid():
        closing = asyncio.run_coroutine_threadsafe(_LOOPS[process].shutdown_asyncgens(), _LOOPS[process])
        with suppress(TimeoutError):
            closing.result(1.0)


def wait_for(coroutine: Coroutine[Any, Any, T]) -> T:
    """What the coroutine returns, for plain functions; they may be called in any thread but that of `background_loop`.
    One that is interrupted cancels the coroutine."""
    future = asyncio.run_coroutine_threadsafe(coroutine, background_loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise
