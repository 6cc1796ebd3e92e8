"""Requests per second and tail latency of `mempo serve`, against a plain server over the same index.

    python bench/retrieval.py                      # the atlas, indexed into a temporary folder
    python bench/retrieval.py my_index --clients 32 --rounds 9

Servers take turns, the order changes every round, and ratios are of one round: what else runs on the machine then meets
both. Servers and clients are pinned to different cores. Every query is new to the servers in `new` (no cache); in
`groups of 4` each is asked four times, in random order, as rollouts of one question do, with the cache as it comes.
"""

from __future__ import annotations

import argparse
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from load import Measured, measure
from memory import report_memory

from mempo.envs.registry import make_environment
from mempo.retrieval.corpus import Corpus
from mempo.retrieval.index import Bm25Index, open_index

HERE = Path(__file__).parent
PLAIN, QUICK, OURS, OURS_WITHOUT_CACHE = "plain", "plain, with mempo's HTTP parser", "mempo", "mempo, no cache"


@dataclass(frozen=True)
class Cost:
    """Of one server in one round; `cpu_ms` is its processor time per request."""

    measured: Measured
    cpu_ms: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("index", nargs="?", help="an index folder; default: a BM25 index of the atlas")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--requests", type=int, default=1500, help="per server and round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", type=int, default=50_000, metavar="PASSAGES", help="0 leaves this part out")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        index = asked.index or str(build_atlas(Path(work)))
        questions = questions_for(index, from_atlas=asked.index is None)
        print(f"{len(open_index(index).corpus)} documents, {os.cpu_count()} cores, {asked.rounds} rounds of ", end="")
        print(f"{asked.requests} requests for each server\n")
        with servers(index) as ports:
            for name, ours, repeats in (("new", OURS_WITHOUT_CACHE, 1), ("groups of 4", OURS, 4)):
                print(f"{'queries: ' + name:36}{'req/s':>5} {'p50 ms':>8} {'p99 ms':>7} {'CPU ms':>7}")
                for clients in asked.clients:
                    compare(ports, ours, questions, clients, asked.requests, repeats, asked.rounds)
                print()
        if asked.memory:
            report_memory(Path(work), asked.memory)


def compare(
    ports: dict[str, tuple[int, int]],
    ours: str,
    questions: Sequence[str],
    clients: int,
    requests: int,
    repeats: int,
    rounds: int,
) -> None:
    found: dict[str, list[Cost]] = {PLAIN: [], QUICK: [], ours: []}
    for number in range(rounds):
        queries = make_queries(questions, requests, repeats, f"{clients} {number}")
        for name in list(found)[:: 1 if number % 2 else -1]:
            port, process = ports[name]
            before_s = cpu_s(process)
            measured = measure(port, queries, clients)
            found[name].append(Cost(measured, 1e3 * (cpu_s(process) - before_s) / len(queries)))
    print(f"{clients} clients")
    for name, costs in found.items():
        against = "" if name == ours else "   mempo: " + ratios(costs, found[ours])
        print(f"  {name:34}{shown(costs)}{against}")


def shown(costs: list[Cost]) -> str:
    """The medians."""
    columns = zip(
        *((c.measured.per_second, c.measured.p50_ms, c.measured.p99_ms, c.cpu_ms) for c in costs), strict=True
    )
    per_second, p50, p99, cpu = (statistics.median(column) for column in columns)
    return f"{per_second:5.0f} {p50:8.1f} {p99:7.1f} {cpu:7.2f}"


def ratios(others: list[Cost], ours: list[Cost]) -> str:
    """How many times as many requests a second, and as few ms of CPU each: median and range of the rounds."""
    pairs = list(zip(others, ours, strict=True))
    speed = [us.measured.per_second / them.measured.per_second for them, us in pairs]
    work = [them.cpu_ms / us.cpu_ms for them, us in pairs]
    spread = "{:.2f} ({:.2f}-{:.2f})"
    return ", ".join(
        f"{what} × {spread.format(statistics.median(values), min(values), max(values))}"
        for what, values in (("requests", speed), ("CPU", work))
    )


def make_queries(questions: Sequence[str], requests: int, repeats: int, salt: str) -> list[str]:
    """`requests` queries, each `repeats` times; a word that no document has makes them new to every cache."""
    rng = random.Random(salt)
    chosen = [rng.choice(questions) for _ in range(requests // repeats)]
    queries = [f"{question} zq{salt.replace(' ', 'x')}x{n}" for n, question in enumerate(chosen)] * repeats
    rng.shuffle(queries)
    return queries


def build_atlas(work: Path) -> Path:
    documents: Any = make_environment("atlas", {}).documents()
    Bm25Index.build(Corpus.from_documents(documents, work / "corpus"), work / "index")
    return work / "index"


def questions_for(index: str, from_atlas: bool) -> list[str]:
    """The atlas's own questions; for another index, the first words of its documents."""
    if from_atlas:
        return [question.text for question in make_environment("atlas", {}).questions("train", 4000, 1, 0)]
    corpus = open_index(index).corpus
    rng = random.Random(0)
    texts = (corpus[rng.randrange(len(corpus))].text for _ in range(2000))
    return [" ".join(text.split()[:12]) for text in texts]


@contextmanager
def servers(index: str) -> Iterator[dict[str, tuple[int, int]]]:
    """Port and process number of each server, all but the last core theirs."""
    cores = sorted(os.sched_getaffinity(0))
    theirs = set(cores[:-1] or cores)
    os.sched_setaffinity(0, {cores[-1]})
    commands = {
        PLAIN: lambda port: [str(HERE / "plain_server.py"), index, port],
        QUICK: lambda port: [str(HERE / "plain_server.py"), index, port, "quick"],
        OURS: lambda port: ["-m", "mempo.cli.main", "serve", index, "--port", port],
        OURS_WITHOUT_CACHE: lambda port: ["-m", "mempo.cli.main", "serve", index, "--port", port, "cache_mib=0"],
    }
    started: list[subprocess.Popen[bytes]] = []
    ports: dict[str, tuple[int, int]] = {}
    try:
        for name, command in commands.items():
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            arguments = [sys.executable, *command(str(port))]
            process = subprocess.Popen(arguments, stderr=subprocess.DEVNULL)
            os.sched_setaffinity(process.pid, theirs)
            started.append(process)
            ports[name] = port, process.pid
        for port, _ in ports.values():
            wait_for(port)
        yield ports
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait()
        os.sched_setaffinity(0, set(cores))


def wait_for(port: int) -> None:
    for _ in range(600):
        try:
            measure(port, ["capital of France"] * 20, 1)
            return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"no server came up on port {port}")


def cpu_s(process: int) -> float:
    """Processor time of a process so far, user and system."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
