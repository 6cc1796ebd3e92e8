"""Micro-batching: questions that come while the index is busy are asked together as soon as it is free.

Nothing waits for company: an idle index is asked at once, and batches grow by themselves with the load.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

from mempo.http.threads import DaemonThreads

Q = TypeVar("Q", bound=Hashable)
A = TypeVar("A")

_MAX_RETRY_AFTER_S = 30


class Busy(Exception):
    """The queue is full, or a request waited too long; `retry_after_s` is when asking again may help."""

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


@dataclass(eq=False)
class _Waiting(Generic[Q, A]):
    """One request: what it asks, how much of it has been taken, and what was answered so far."""

    questions: Sequence[Q]
    since_s: float
    done: asyncio.Future[list[A]]
    taken: int = 0

    def __post_init__(self) -> None:
        self.answers: list[A] = []


class Batcher(Generic[Q, A]):
    """One worker thread behind a bounded queue. To be used from a single event loop.

    `answer(questions)` gives one answer per question, in order; it runs in the thread. When it raises, the requests of
    that batch are asked again one by one, so that only those that it cannot answer fail, with what it raised.
    """

    def __init__(
        self,
        answer: Callable[[list[Q]], Sequence[A]],
        max_batch: int,
        max_waiting: int,
        max_wait_s: float,
        seen: Callable[[int], None] = lambda size: None,
    ) -> None:
        """`seen(size)` is told the number of questions of each batch."""
        self._answer = answer
        self._max_batch = max_batch
        self._max_waiting = max_waiting
        self._max_wait_s = max_wait_s
        self._seen = seen
        self._queue: deque[_Waiting[Q, A]] = deque()
        self._thread = DaemonThreads(1, "mempo-batcher")
        self._worker: asyncio.Task[None] | None = None
        self._seconds_per_question = 0.0
        self.waiting = 0
        """Questions that have been accepted and not yet answered."""

    async def ask(self, questions: Sequence[Q]) -> list[A]:
        """One answer per question, in order.

        Raises:
            Busy: there is no room in the queue, or the turn did not come within `max_wait_s`.
        """
        if not questions:
            return []
        if self.waiting + len(questions) > self._max_waiting:
            raise Busy(f"{self.waiting} queries are waiting, at most {self._max_waiting} may", self.retry_after_s())
        request = _Waiting[Q, A](questions, time.monotonic(), asyncio.get_running_loop().create_future())
        self._queue.append(request)
        self.waiting += len(questions)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        try:
            return await request.done
        finally:
            self.waiting -= len(questions)

    def retry_after_s(self) -> int:
        """Whole seconds until what waits now will have been answered, at the pace of late."""
        return min(max(math.ceil(self.waiting * self._seconds_per_question), 1), _MAX_RETRY_AFTER_S)

    async def close(self) -> None:
        """Waits for what was accepted; what nobody waits for is left to a thread that ends with the process."""
        if self._worker is not None:
            if not self.waiting:
                self._worker.cancel()
            with suppress(asyncio.CancelledError):
                await self._worker
        self._thread.shutdown()

    async def _work(self) -> None:
        while batch := self._take():
            questions = list(dict.fromkeys(q for request, start, stop in batch for q in request.questions[start:stop]))
            self._seen(len(questions))
            begun = time.monotonic()
            try:
                answers = dict(zip(questions, await self._call(questions), strict=True))
            except Exception:
                await self._one_by_one(batch)
            else:
                for request, start, stop in batch:
                    _add(request, [answers[question] for question in request.questions[start:stop]])
            pace = (time.monotonic() - begun) / len(questions)
            self._seconds_per_question += 0.2 * (pace - self._seconds_per_question)

    async def _one_by_one(self, batch: Sequence[tuple[_Waiting[Q, A], int, int]]) -> None:
        for request, start, stop in batch:
            try:
                _add(request, await self._call(request.questions[start:stop]))
            except Exception as error:  # whatever it is, it is this request's answer
                if not request.done.done():
                    request.done.set_exception(error)

    async def _call(self, questions: Sequence[Q]) -> Sequence[A]:
        asked = list(questions)
        answers = await asyncio.get_running_loop().run_in_executor(self._thread, self._answer, asked)
        if len(answers) != len(asked):
            raise RuntimeError(f"{len(asked)} questions got {len(answers)} answers")
        return answers

    def _take(self) -> list[tuple[_Waiting[Q, A], int, int]]:
        """The next batch: requests in the order they came; a large one goes to the back of the queue after its part."""
        batch: list[tuple[_Waiting[Q, A], int, int]] = []
        room, now = self._max_batch, time.monotonic()
        while room and self._queue:
            request = self._queue.popleft()
            if request.done.done():  # its client has gone, or a part of it failed
                continue
            if now - request.since_s > self._max_wait_s and not request.taken:
                message = f"no turn within {self._max_wait_s:g} s"
                request.done.set_exception(Busy(message, self.retry_after_s()))
                continue
            start, stop = request.taken, min(request.taken + room, len(request.questions))
            request.taken = stop
            room -= stop - start
            batch.append((request, start, stop))
        self._queue.extend(request for request, _, stop in batch if stop < len(request.questions))
        return batch


def _add(request: _Waiting[Q, A], answers: Sequence[A]) -> None:
    request.answers += answers
    if len(request.answers) == len(request.questions) and not request.done.done():
        request.done.set_result(request.answers)
