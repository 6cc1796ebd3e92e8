"""Rollouts in flight against a model server that answers after a fixed time: how close to the ideal do they finish?

Usage: python bench/sampler_http.py [--rollouts 64] [--turns 8] [--delay-ms 50] [--rounds 5]

The server is a process of its own that spends no time on a model. Ideal is `turns × delay`: every rollout waits for its
own replies and for nothing else. What is above it is the agent loop, the client and the server's handling together.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import time
from multiprocessing.connection import Connection

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from mempo.agent import Agent, DecodingSettings, Job, LimitSettings, run_rollouts
from mempo.context import make_context
from mempo.evaluate.openai_capabilities import Capabilities
from mempo.evaluate.openai_client import OpenAIClient
from mempo.evaluate.openai_sampler import OpenAISampler
from mempo.evaluate.openai_settings import ServerSettings
from mempo.interfaces import ToolResult
from mempo.protocol import TurnGrammar
from mempo.question import Question
from mempo.render import PromptSettings, Renderer
from mempo.tokens import Codec
from mempo.trajectory import StopReason

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
        await server.serve_forever()

    import uvloop

    uvloop.run(run())


class Found:
    name = "search"

    async def call(self, argument: str) -> ToolResult:
        return ToolResult(passages=(PASSAGE,))


def make_codec() -> Codec:
    """Byte pairs trained on what is said here: about as many characters a token as a large vocabulary has."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(initial_alphabet=alphabet, special_tokens=["<eos>"], show_progress=False)
    tokenizer.train_from_iterator([TEXT, PASSAGE, "<tool_response>", "currency of country"], trainer)
    return Codec(PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>"))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rollouts", type=int, default=64)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--delay-ms", type=float, default=50.0)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    delay_s = args.delay_ms / 1e3
    pipe, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs, delay_s), daemon=True)
    server.start()
    url = f"http://127.0.0.1:{pipe.recv()}"
    codec = make_codec()
    renderer = Renderer(codec, PromptSettings(template="plain"))
    limits = LimitSettings(max_turns=args.turns, max_turn_tokens=512, max_context_tokens=8192)
    agent = Agent("memory", make_context("memory", renderer), TurnGrammar(), renderer, {"search": Found()}, limits)
    jobs = [Job(Question(str(k), f"currency of country {k}?", "euro"), 0, (0,)) for k in range(args.rollouts)]
    client = OpenAIClient(ServerSettings(url=url, max_concurrent=args.rollouts))
    can = Capabilities(client.base, "stub", "completions", stop_string="removed", stop_field="stop_reason")
    ideal_s = args.turns * delay_s
    print(f"{args.rollouts} rollouts of {args.turns} turns, {args.delay_ms:g} ms a reply: ideal {ideal_s:.2f} s")
    ratios, cpu_ms = [], []
    with OpenAISampler(client, codec, can) as sampler:
        for number in range(args.rounds + 1):
            began, cpu = time.perf_counter(), time.process_time()
            played = asyncio.run(run_rollouts(agent, sampler, jobs, DecodingSettings()))
            taken_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
            assert all(trajectory.stop is StopReason.TURN_LIMIT for trajectory in played)
            name = "warm-up" if number == 0 else f"round {number}"
            each_ms = 1e3 * cpu_s / (args.rollouts * args.turns)
            print(f"{name}: {taken_s:.3f} s, {taken_s / ideal_s:.2f} × ideal; {each_ms:.2f} ms of CPU a turn")
            if number:
                ratios.append(taken_s / ideal_s)
                cpu_ms.append(each_ms)
    server.kill()
    low, high = min(ratios), max(ratios)
    middle, each_ms = statistics.median(ratios), statistics.median(cpu_ms)
    print(f"median {middle:.2f} × ideal ({low:.2f}–{high:.2f}); {each_ms:.2f} ms of CPU a turn")


if __name__ == "__main__":
    main()
