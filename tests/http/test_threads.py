"""Threads that nobody has to wait for, and the retry policy."""

from __future__ import annotations

import asyncio
import gc
import threading
from concurrent.futures import Future, wait

import pytest

from mempo.config.tools import RetrySettings
from mempo.http.retry import retried
from mempo.http.threads import DaemonThreads, wait_for


def test_no_more_threads_than_allowed_and_no_more_than_needed() -> None:
    pool = DaemonThreads(3, "pool-test")
    release, running = threading.Event(), threading.Semaphore(0)

    def call(n: int) -> tuple[int, str, bool]:
        running.release()
        release.wait(10)
        return n, threading.current_thread().name, threading.current_thread().daemon

    futures = [pool.submit(call, n) for n in range(10)]
    for _ in range(3):
        assert running.acquire(timeout=10)
    assert not running.acquire(timeout=0.05), "the others wait for their turn"
    release.set()
    found = [future.result(10) for future in futures]
    assert [n for n, _, _ in found] == list(range(10))
    assert {name for _, name, _ in found} <= {"pool-test_1", "pool-test_2", "pool-test_3"}
    assert all(daemon for _, _, daemon in found)


def test_what_a_call_raises_is_the_callers_and_the_thread_goes_on() -> None:
    pool = DaemonThreads(1, "raising")
    with pytest.raises(ZeroDivisionError):
        pool.submit(lambda: 1 // 0).result(10)
    assert pool.submit(lambda: "fine").result(10) == "fine"


def test_a_call_that_was_cancelled_in_the_queue_is_not_made() -> None:
    pool, release, calls = DaemonThreads(1, "cancelling"), threading.Event(), list[str]()
    first: Future[bool] = pool.submit(release.wait, 10)
    second = pool.submit(calls.append, "made")
    assert second.cancel()
    release.set()
    assert first.result(10)
    pool.submit(lambda: None).result(10)
    assert calls == []


def test_threads_end_with_their_pool() -> None:
    pool = DaemonThreads(2, "ending-pool")
    wait([pool.submit(threading.Event().wait, 0.01) for _ in range(2)], timeout=10)
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("ending-pool")]
    assert threads
    del pool
    gc.collect()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_plain_functions_wait_for_coroutines_from_any_thread() -> None:
    async def double(n: int) -> int:
        await asyncio.sleep(0)
        return 2 * n

    pool = DaemonThreads(4, "waiting")
    assert [f.result(10) for f in [pool.submit(lambda n=n: wait_for(double(n))) for n in range(20)]] == [
        2 * n for n in range(20)
    ]


def test_what_is_no_failure_is_not_tried_again() -> None:
    made: list[int] = []

    async def attempt() -> None:
        made.append(1)
        raise KeyError("a mistake of ours")

    with pytest.raises(KeyError):
        asyncio.run(retried(attempt, RetrySettings(tries=5, backoff_s=0), ValueError))
    assert made == [1]
