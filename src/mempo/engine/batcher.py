"""Gathers pending `generate` calls into batches for the one engine thread.

The event loop never runs torch. Weights change only between `run_rollouts` calls, while nothing is in flight.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

from mempo.rollout.interfaces import Generation, SamplingParams

Generate = Callable[[Sequence[Sequence[int]], Sequence[SamplingParams]], list[Generation]]


@dataclass
class _Pending:
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    future: asyncio.Future[Generation]


class BatchingSampler:
    """A `Sampler` over a blocking batch function.

    `lockstep`: a batch starts when every rollout under way waits for one, and is ordered by the requests' own seeds:
    the same run gives the same batches, however long tools took. `eager`: a batch starts as soon as the engine is free.
    """

    def __init__(self, generate: Generate, schedule: Literal["lockstep", "eager"] = "lockstep") -> None:
        self._generate = generate
        self._schedule = schedule
        self._pending: list[_Pending] = []
        self._under_way = 0
        self._busy = False
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="mempo-engine")

    def enter(self, rollouts: int) -> None:
        self._under_way += rollouts

    def leave(self) -> None:
        self._under_way -= 1
        self._start_if_due()

    def measures(self) -> dict[str, float | None]:
        """What the batch function says of itself, if it does."""
        measures = getattr(self._generate, "measures", None)
        return measures() if measures else {}

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> Generation:
        future: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        self._pending.append(_Pending(tuple(prompt_ids), sampling, future))
        if self._schedule == "eager":
            await asyncio.sleep(0)  # let the others of this tick ask too
        self._start_if_due()
        return await future

    def _start_if_due(self) -> None:
        # Requests of rollouts that were cancelled (another one raised) are nobody's.
        self._pending = [pending for pending in self._pending if not pending.future.done()]
        if self._busy or not self._pending:
            return
        if self._schedule == "lockstep" and len(self._pending) < self._under_way:
            return
        batch, self._pending = self._pending, []
        self._busy = True
        task = asyncio.get_running_loop().create_task(self._run(batch))
        task.add_done_callback(lambda _: None)

    async def _run(self, batch: list[_Pending]) -> None:
        loop = asyncio.get_running_loop()
        batch.sort(key=lambda p: (-len(p.prompt_ids), p.sampling.seed or 0))
        try:
            prompts, sampling = [p.prompt_ids for p in batch], [p.sampling for p in batch]
            results = await loop.run_in_executor(self._executor, self._generate, prompts, sampling)
            for pending, result in zip(batch, results, strict=True):
                if not pending.future.done():
                    pending.future.set_result(result)
        except BaseException as error:
            for pending in batch:
                if not pending.future.done():
                    pending.future.set_exception(error)
        finally:
            self._busy = False
            self._start_if_due()
