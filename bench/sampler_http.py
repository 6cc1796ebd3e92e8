"""Rollouts in flight against a model server that answers after a fixed time: how close to the ideal do they finish?

Usage: python bench/sampler_http.py [--rollouts 64] [--in-flight 64] [--turns 8] [--delay-ms 50] [--rounds 9] [--fresh]

They are played as `mempo eval` plays them: each is judged and appended to a rollout file as it ends. The server is a
process of its own that spends no time on a model. Ideal is `turns × delay`, once for every `--in-flight` rollouts:
every rollout waits for its own replies and for nothing else. What is above it is the agent loop, the client and the
file; all that are in flight begin at once and end at once, so few and short ones show more of it (`--rollouts 256`
keeps 64 in flight for longer). Both processes need a core to themselves: `others` says how many cores everything else
on the machine took meanwhile. The CPU time of a reply in the server is printed to show that it is not what is waited
for.

All searches find the same passage, as rollouts of one question do; `--fresh`: each finds another, which costs a turn
its tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import multiprocessing
import os
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

from timing import spread
from tokenizers import Tokenizer as HfTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from mempo.config.evaluate import EvalSettings
from mempo.config.rewards import MemorySettings, OutcomeSettings
from mempo.config.rollout import LimitSettings, PromptSettings
from mempo.config.server import ServerSettings
from mempo.engine.server.capabilities import Capabilities
from mempo.engine.server.client import OpenAIClient
from mempo.engine.server.sampler import OpenAISampler
from mempo.evaluate.loops import run_loop
from mempo.evaluate.runner import EvalSetup, play, record_of
from mempo.rollout.agent import Agent, Job
from mempo.rollout.context import make_context
from mempo.rollout.interfaces import ToolResult
from mempo.rollout.protocol import TurnGrammar
from mempo.rollout.question import Question
from mempo.rollout.render import Renderer
from mempo.rollout.tokenizer import Tokenizer
from mempo.rollout.trajectory import StopReason, Trajectory
from mempo.storage.append import RolloutAppender

NOTE = "<mem>Paris is the capital of France; its currency is still to be found.</mem><think>I look it up.</think>"
TEXT = f"{NOTE}<search>currency of France</search>"
PASSAGE = "France uses the euro, which took the place of the franc in 2002. " * 6


class _Slow(asyncio.Protocol):
    """Answers every request with the same turn after the delay."""

    def __init__(self, reply: bytes, delay_s: float) -> None:
        self._reply, self._delay_s, self._seen = reply, delay_s, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._seen += data
        head, found, body = self._seen.partition(b"\r\n\r\n")
        if found and len(body) >= int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]):
            self._seen = b""
            asyncio.get_running_loop().call_later(self._delay_s, self._transport.write, self._reply)  # type: ignore


def serve(pipe: Connection, delay_s: float) -> None:
    choice = {"text": TEXT, "finish_reason": "stop", "stop_reason": "</search>", "logprobs": None}
    content = json.dumps({"choices": [choice], "usage": {"completion_tokens": 40, "prompt_tokens": 9}}).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(content)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Slow(head + content, delay_s), "127.0.0.1", 0, backlog=1024)
        pipe.send(server.sockets[0].getsockname()[1])
        loop.add_reader(pipe.fileno(), lambda: pipe.send(pipe.recv() and time.process_time()))
        await server.serve_forever()

    import uvloop

    uvloop.run(run())


class Found:
    """Answers at once; `fresh`: with a passage that nobody has seen."""

    name = "search"

    def __init__(self, fresh: bool) -> None:
        self._fresh, self._calls = fresh, 0

    async def call(self, argument: str) -> ToolResult:
        self._calls += 1
        return ToolResult(passages=(f"Passage {self._calls}. {PASSAGE}" if self._fresh else PASSAGE,))


def make_tokenizer() -> Tokenizer:
    """Byte pairs trained on what is said here: about as many characters a token as a large vocabulary has."""
    tokenizer = HfTokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(initial_alphabet=alphabet, special_tokens=["<eos>"], show_progress=False)
    tokenizer.train_from_iterator([TEXT, PASSAGE, "<tool_response>", "currency of country"], trainer)
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>"))


def busy_s() -> float:
    """CPU-seconds that all processes of the machine have used; 0 where the system does not tell."""
    stat = Path("/proc/stat")
    if not stat.is_file():
        return 0.0
    user, nice, system, _, _, irq, soft, steal, *_ = map(int, stat.read_text().split("\n", 1)[0].split()[1:])
    return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")


def play_and_save(setup: EvalSetup, jobs: list[Job], in_flight: int) -> list[Trajectory]:
    played: list[Trajectory] = []
    with tempfile.TemporaryDirectory() as folder, RolloutAppender(Path(folder) / "rollouts.jsonl") as appender:

        def on_done(job: Job, trajectory: Trajectory, seconds: float) -> None:
            appender.append(trajectory, record_of(setup, job.question, trajectory, seconds=seconds))
            played.append(trajectory)

        run_loop(play(setup.agent, setup.sampler, jobs, EvalSettings(max_in_flight=in_flight), on_done))
    return played


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=64)
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--delay-ms", type=float, default=50.0)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--fresh", action="store_true", help="every search finds another passage")
    args = parser.parse_args()
    delay_s = args.delay_ms / 1e3
    pipe, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs, delay_s), daemon=True)
    server.start()
    url = f"http://127.0.0.1:{pipe.recv()}"

    def server_s() -> float:
        pipe.send(True)
        return pipe.recv()

    tokenizer = make_tokenizer()
    renderer = Renderer(tokenizer, PromptSettings(template="plain"))
    limits = LimitSettings(max_turns=args.turns, max_turn_tokens=512, max_context_tokens=8192)
    agent = Agent(
        "memory", make_context("memory", renderer), TurnGrammar(), renderer, {"search": Found(args.fresh)}, limits
    )
    jobs = [Job(Question(str(k), f"currency of country {k}?", "euro"), 0, (0,)) for k in range(args.rollouts)]
    client = OpenAIClient(ServerSettings(url=url, max_concurrent=args.in_flight))
    can = Capabilities(client.base, "stub", "completions", stop_string="removed", stop_field="stop_reason")
    waves, turns = math.ceil(args.rollouts / args.in_flight), args.rollouts * args.turns
    ideal_s = waves * args.turns * delay_s
    print(
        f"{args.rollouts} rollouts of {args.turns} turns, {args.in_flight} in flight, {args.delay_ms:g} ms a reply: "
        f"ideal {ideal_s:.2f} s"
    )
    found: dict[str, list[float]] = {"ratio": [], "client": [], "server": [], "others": []}
    with OpenAISampler(client, tokenizer, can) as sampler:
        setup = EvalSetup(agent, sampler, None, OutcomeSettings(), MemorySettings(), seed=0)
        for number in range(args.rounds + 1):
            began, mine, its, all_s = time.perf_counter(), time.process_time(), server_s(), busy_s()
            played = play_and_save(setup, jobs, args.in_flight)
            taken_s = time.perf_counter() - began
            mine, its, all_s = time.process_time() - mine, server_s() - its, busy_s() - all_s
            assert all(trajectory.stop is StopReason.TURN_LIMIT for trajectory in played)
            others = max(all_s - mine - its, 0.0) / taken_s
            row = (taken_s / ideal_s, 1e3 * mine / turns, 1e3 * its / turns, others)
            name = f"round {number}" if number else "warm-up"
            print(
                f"{name}: {taken_s:.3f} s, {row[0]:.2f} × ideal; CPU a turn: client {row[1]:.2f} ms, server "
                f"{row[2]:.2f} ms; others {others:.1f} cores"
            )
            if number:
                for values, value in zip(found.values(), row, strict=True):
                    values.append(value)
    server.kill()
    ratio, client_ms, server_ms, others = ((statistics.median(v), min(v), max(v)) for v in found.values())
    print(f"{spread(ratio)} × ideal; CPU a turn: client {spread(client_ms)} ms, server {spread(server_ms)} ms")
    print(
        f"alone on its core the server answers {1e3 / server_ms[0]:.0f} requests a second; "
        f"{min(args.rollouts, args.in_flight) / delay_s:.0f} are asked for at the ideal; others took {spread(others)} "
        "cores"
    )


if __name__ == "__main__":
    main()
