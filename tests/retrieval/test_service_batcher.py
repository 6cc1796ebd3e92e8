"""Micro-batching: what is asked together, what is refused, and whose failure is whose."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from mempo.retrieval.server.batcher import Batcher, Busy


class Oracle:
    """Doubles numbers; waits when told to, fails on negative ones, and remembers its batches."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.go_on = threading.Event()
        self.go_on.set()

    def __call__(self, questions: list[int]) -> list[int]:
        assert self.go_on.wait(10)
        self.batches.append(questions)
        if any(question < 0 for question in questions):
            raise ValueError(f"negative: {questions}")
        return [2 * question for question in questions]


def played(play: Callable[[Batcher[int, int], Oracle], Awaitable[Any]], **changes: Any) -> Any:
    async def main() -> Any:
        oracle = Oracle()
        batcher = Batcher[int, int](oracle, **{"max_batch": 4, "max_waiting": 100, "max_wait_s": 60.0, **changes})
        try:
            return await play(batcher, oracle)
        finally:
            oracle.go_on.set()
            await batcher.close()
            assert batcher.waiting == 0

    return asyncio.run(main())


async def while_busy(batcher: Batcher[int, int], oracle: Oracle, *requests: list[int]) -> list[Any]:
    """The answers of requests that all came while the index was busy with 1000."""
    oracle.go_on.clear()
    first = asyncio.create_task(batcher.ask([1000]))
    await asyncio.sleep(0)
    tasks = [asyncio.create_task(batcher.ask(request)) for request in requests]
    for _ in range(3):
        await asyncio.sleep(0)
    oracle.go_on.set()
    assert await first == [2000]
    return list(await asyncio.gather(*tasks, return_exceptions=True))


def test_what_waits_is_asked_together_once_and_each_gets_its_own() -> None:
    async def play(batcher: Batcher[int, int], oracle: Oracle) -> None:
        answers = await while_busy(batcher, oracle, [1, 2], [2], [3])
        assert answers == [[2, 4], [4], [6]]
        assert oracle.batches == [[1000], [1, 2, 3]]

    played(play)


def test_a_large_request_does_not_hold_up_the_small_ones_behind_it() -> None:
    async def play(batcher: Batcher[int, int], oracle: Oracle) -> None:
        answers = await while_busy(batcher, oracle, list(range(10)), [50], [51])
        assert answers == [[2 * n for n in range(10)], [100], [102]]
        assert oracle.batches == [[1000], [0, 1, 2, 3], [50, 51, 4, 5], [6, 7, 8, 9]]

    played(play)


def test_only_the_request_that_cannot_be_answered_fails() -> None:
    async def play(batcher: Batcher[int, int], oracle: Oracle) -> None:
        good, bad, other = await while_busy(batcher, oracle, [1], [-1], [2])
        assert (good, other) == ([2], [4])
        assert isinstance(bad, ValueError)
        assert str(bad) == "negative: [-1]"

    played(play)


def test_a_full_queue_refuses_and_recovers() -> None:
    async def play(batcher: Batcher[int, int], oracle: Oracle) -> None:
        fits, too_many, small = await while_busy(batcher, oracle, [1, 2], [3, 4], [5])
        assert (fits, small) == ([2, 4], [10])
        assert isinstance(too_many, Busy)
        assert too_many.retry_after_s >= 1
        assert await batcher.ask([3, 4]) == [6, 8]

    played(play, max_waiting=4)


def test_what_waited_too_long_is_not_asked_any_more() -> None:
    async def play(batcher: Batcher[int, int], oracle: Oracle) -> None:
        oracle.go_on.clear()
        first = asyncio.create_task(batcher.ask([1]))
        late = asyncio.create_task(batcher.ask([2]))
        await asyncio.sleep(0.1)
        oracle.go_on.set()
        assert await first == [2]
        with pytest.raises(Busy, match="no turn within"):
            await late
        assert oracle.batches == [[1]]

    played(play, max_wait_s=0.05, max_batch=1)


def test_a_request_given_up_is_not_asked() -> None:
    async def play(batcher: Batcher[int, int], oracle: Oracle) -> None:
        oracle.go_on.clear()
        first = asyncio.create_task(batcher.ask([1]))
        await asyncio.sleep(0)
        given_up = asyncio.create_task(batcher.ask([2]))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.sleep(0)
        assert batcher.waiting == 1
        oracle.go_on.set()
        assert await first == [2]
        assert await batcher.ask([3]) == [6]
        assert oracle.batches == [[1], [3]]

    played(play, max_batch=1)


def test_closing_waits_for_what_was_accepted() -> None:
    async def play(batcher: Batcher[int, int], oracle: Oracle) -> None:
        oracle.go_on.clear()
        tasks = [asyncio.create_task(batcher.ask([n])) for n in range(9)]
        await asyncio.sleep(0)
        closing = asyncio.create_task(batcher.close())
        await asyncio.sleep(0)
        assert not closing.done()
        oracle.go_on.set()
        await closing
        assert [task.result() for task in tasks] == [[2 * n] for n in range(9)]

    played(play)


def test_an_index_that_answers_too_little_is_a_failure() -> None:
    async def main() -> None:
        batcher = Batcher[int, int](lambda questions: [], max_batch=4, max_waiting=10, max_wait_s=1.0)
        with pytest.raises(RuntimeError, match="1 questions got 0 answers"):
            await batcher.ask([1])
        assert await batcher.ask([]) == []
        await batcher.close()

    asyncio.run(main())


def test_the_wait_it_asks_for_grows_with_what_waits() -> None:
    async def play(batcher: Batcher[int, int], oracle: Oracle) -> None:
        batcher._seconds_per_question = 0.5
        assert batcher.retry_after_s() == 1
        batcher.waiting = 9
        assert batcher.retry_after_s() == 5
        batcher.waiting = 10**6
        assert batcher.retry_after_s() == 30
        batcher.waiting = 0

    played(play)
