"""Gathering requests: lockstep repeats exactly however long tools take, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Sequence
from typing import Any, Literal

import pytest

from mempo.engine.batcher import BatchingSampler
from mempo.engine.sampler import generate_batch
from mempo.rollout.agent import Agent, Job, run_rollouts
from mempo.rollout.interfaces import CohortSampler, Generation, SamplingParams, ToolResult
from mempo.rollout.question import Question
from mempo.rollout.trajectory import GenerationStop, Trajectory
from tests.tiny import make_agent, make_tokenizer, said, tiny_llama

TOKENIZER = make_tokenizer()
Batch = list[tuple[int, int | None]]  # prompt length and seed of each request


class SlowTool:
    """Takes its time, a different one every call."""

    name = "search"

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    async def call(self, argument: str) -> ToolResult:
        await asyncio.sleep(self._rng.choice([0, 0, 0.002, 0.005]))
        return ToolResult(passages=(f"about {argument}",))


def searching_agent(seed: int, **limits: Any) -> Agent:
    return make_agent(TOKENIZER, tools={"search": SlowTool(seed)}, **limits)


class Engine:
    """Records its batches; rollout `k` of a group answers after `k + 1` turns."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.threads: set[str] = set()

    def __call__(self, prompts: Sequence[Sequence[int]], sampling: Sequence[SamplingParams]) -> list[Generation]:
        self.batches.append([(len(p), s.seed) for p, s in zip(prompts, sampling, strict=True)])
        self.threads.add(threading.current_thread().name)
        return [self._turn(prompt, s.seed or 0) for prompt, s in zip(prompts, sampling, strict=True)]

    def _turn(self, prompt: Sequence[int], seed: int) -> Generation:
        stays = seed % 3 and len(self.batches) < 6
        return said(TOKENIZER, f"<think>{seed % 7}</think>" + ("<search>q</search>" if stays else "<answer>A</answer>"))


def run(engine: Engine, tool_seed: int, schedule: Literal["lockstep", "eager"], rollouts: int = 8) -> list[Trajectory]:
    sampler = BatchingSampler(engine, schedule)
    jobs = [Job(Question("q", "Who?", "A"), n, ("s",)) for n in range(rollouts)]
    return asyncio.run(run_rollouts(searching_agent(tool_seed), sampler, jobs))


def test_lockstep_makes_the_same_batches_whatever_the_tools_delay() -> None:
    engines = [Engine() for _ in range(4)]
    results = [run(engine, n, "lockstep") for n, engine in enumerate(engines)]
    assert len(engines[0].batches[0]) == 8
    assert len(engines[0].batches) > 1
    for engine, result in zip(engines[1:], results[1:], strict=True):
        assert engine.batches == engines[0].batches
        assert result == results[0]


def test_lockstep_repeats_a_real_policy_bit_for_bit() -> None:
    policy = tiny_llama(TOKENIZER)
    jobs = [Job(Question("q", "Who?", "A"), n, ("s",)) for n in range(6)]

    def play(tool_seed: int) -> list[Trajectory]:
        sampler = BatchingSampler(lambda p, s: generate_batch(policy, p, s), "lockstep")
        agent = searching_agent(tool_seed, max_turn_tokens=12, max_turns=3)
        return asyncio.run(run_rollouts(agent, sampler, jobs))

    first, second = play(0), play(1)
    assert first == second, "ids and log-probs alike"
    assert max(len(t.turns) for t in first) == 3


def test_every_batch_of_lockstep_holds_all_that_are_under_way() -> None:
    engine = Engine()
    done = run(engine, 0, "lockstep")
    alive = [sum(len(t.turns) > n for t in done) for n in range(len(engine.batches))]
    assert [len(batch) for batch in engine.batches] == alive


def test_eager_gives_every_rollout_its_turns() -> None:
    engine = Engine()
    done = run(engine, 0, "eager")
    assert all(t.answer == "A" for t in done)
    assert sum(len(batch) for batch in engine.batches) == sum(len(t.turns) for t in done)
    assert len(engine.batches[0]) == 8, "what is asked in one tick goes together"


def test_torch_runs_on_one_thread_that_is_not_the_loops() -> None:
    engine = Engine()
    run(engine, 0, "eager")
    assert len(engine.threads) == 1
    assert threading.current_thread().name not in engine.threads


def test_a_lone_request_outside_a_cohort_is_answered_at_once() -> None:
    sampler = BatchingSampler(Engine(), "lockstep")
    generation = asyncio.run(sampler.generate((5, 6), SamplingParams(9, seed=3)))
    assert generation.stop is GenerationStop.STOP_STRING
    assert isinstance(sampler, CohortSampler)


def test_a_rollout_that_ends_without_asking_holds_nobody_up() -> None:
    engine = Engine()
    sampler = BatchingSampler(engine, "lockstep")
    questions = [Question("q", "Who?", "A"), Question("long", "why " * 5000, "A")]
    jobs = [Job(question, n, ()) for n, question in enumerate(questions)]
    done = asyncio.run(asyncio.wait_for(run_rollouts(searching_agent(0), sampler, jobs), 20))
    assert [len(t.turns) > 0 for t in done] == [True, False]


class Fails:
    def __init__(self, calls: int) -> None:
        self.left = calls

    def __call__(self, prompts: Sequence[Sequence[int]], sampling: Sequence[SamplingParams]) -> list[Generation]:
        if self.left:
            self.left -= 1
            raise MemoryError("out of memory")
        return [said(TOKENIZER, "<think>t</think><answer>A</answer>") for _ in prompts]


@pytest.mark.parametrize("schedule", ["lockstep", "eager"])
def test_a_failing_engine_fails_the_run_and_can_be_used_again(schedule: Literal["lockstep", "eager"]) -> None:
    sampler = BatchingSampler(Fails(1), schedule)
    jobs = [Job(Question("q", "Who?", "A"), n, ()) for n in range(4)]
    with pytest.raises(MemoryError, match="out of memory"):
        asyncio.run(asyncio.wait_for(run_rollouts(searching_agent(0), sampler, jobs), 20))
    done = asyncio.run(asyncio.wait_for(run_rollouts(searching_agent(0), sampler, jobs), 20))
    assert [t.answer for t in done] == ["A"] * 4


@pytest.mark.parametrize("schedule", ["lockstep", "eager"])
def test_a_cancelled_run_leaves_nothing_behind(schedule: Literal["lockstep", "eager"]) -> None:
    engine = Engine()
    sampler = BatchingSampler(engine, schedule)
    jobs = [Job(Question("q", "Who?", "A"), n, ("s",)) for n in range(8)]

    class Hangs:
        """The first call never comes back, so in lockstep the others wait for it with their requests made."""

        name = "search"
        calls = 0

        async def call(self, argument: str) -> ToolResult:
            self.calls += 1
            await asyncio.sleep(1000 if self.calls == 1 else 0)
            return ToolResult(notice="no")

    async def cancelled() -> None:
        agent = make_agent(TOKENIZER, tools={"search": Hangs()})
        await asyncio.wait_for(run_rollouts(agent, sampler, jobs), 0.2)

    with pytest.raises(TimeoutError):
        asyncio.run(cancelled())
    before = len(engine.batches)
    assert schedule == "eager" or before == 1, "nobody waits for an answer any more, so none is made"
    done = asyncio.run(asyncio.wait_for(run_rollouts(searching_agent(0), sampler, jobs), 20))
    assert all(t.answer == "A" for t in done)
    assert engine.batches[before] == engine.batches[0], "requests of the cancelled run are gone"
