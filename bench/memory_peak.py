"""Peak memory of an update's loss: all logits at once, and a chunk of them at a time.

    python bench/memory_peak.py --tokens 2048 --vocabulary 151936 --width 896

Both ways compute the log-probs and entropies of the same tokens from hidden states `[tokens, width]` and a head
`[vocabulary, width]`, and the gradients of both. They take turns, each in a process of its own, so that neither
inherits memory from the other. The peak is what a process gained above its inputs: of its resident set on the CPU, of
allocated memory on a GPU. The shape of `--full-tokens` is worked out from the measured one: beside the gradients the
plain way grows with tokens x vocabulary, and ours not at all.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch

import torch

from mempo.engine.logprobs import CHUNK_LOGITS, selected_logprobs

MIB = 2**20


def plain(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """Logits, softmax and entropy of every token at once."""
    every = torch.log_softmax((hidden @ weight.T).float() / temperature[:, None], dim=-1)
    with torch.no_grad():
        torch.special.entr(every.exp()).sum(-1)
    return every.gather(1, targets[:, None])[:, 0]


def ours(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    return selected_logprobs(hidden, weight, None, targets, temperature)[0]


WAYS = {"plain": plain, "ours": ours}


def measure(way: str, tokens: int, vocabulary: int, width: int, device: str) -> dict[str, float]:
    """Bytes gained at the peak of one forward and backward pass, and what it took and gave."""
    g = torch.Generator().manual_seed(0)
    hidden = torch.randn(tokens, width, generator=g).to(device).requires_grad_()
    weight = (torch.randn(vocabulary, width, generator=g) / width**0.5).to(device).requires_grad_()
    targets = torch.randint(vocabulary, (tokens,), generator=g).to(device)
    temperature = torch.ones(tokens, device=device)
    on_gpu = hidden.device.type == "cuda"
    small = [t[:8].detach().requires_grad_() for t in (hidden, weight)]
    WAYS[way](
        small[0], small[1], targets[:8] % 8, temperature[:8]
    ).sum().backward()  # libraries are loaded on first use
    if on_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    else:
        before = _resident()
    cpu, wall = time.process_time(), time.perf_counter()
    logprobs = WAYS[way](hidden, weight, targets, temperature)
    logprobs.mean().backward()
    if on_gpu:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - wall if on_gpu else time.process_time() - cpu
    peak = torch.cuda.max_memory_allocated() if on_gpu else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert hidden.grad is not None
    assert weight.grad is not None
    return {
        "bytes": peak - before,
        "seconds": seconds,
        "logprob": float(logprobs.detach().mean()),
        "grad": float(hidden.grad.norm()),
        "weight_grad": float(weight.grad.norm()),
    }


def _resident() -> int:
    fields = Path("/proc/self/statm").read_text("utf-8").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def _in_a_process(way: str, shape: argparse.Namespace) -> dict[str, float]:
    arguments = [way, shape.tokens, shape.vocabulary, shape.width, shape.device]
    done = subprocess.run(
        [sys.executable, __file__, "--measure", *map(str, arguments)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"the {way} way failed (status {done.returncode}): {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2048, help="generated tokens of a micro-batch")
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--width", type=int, default=896, help="of the hidden states")
    parser.add_argument("--full-tokens", type=int, default=16_384, help="the shape to work out")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--measure", nargs=5, metavar="", help=argparse.SUPPRESS)
    shape = parser.parse_args()
    if shape.measure:
        way, tokens, vocabulary, width, device = shape.measure
        print(json.dumps(measure(way, int(tokens), int(vocabulary), int(width), device)))
        return

    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for _ in range(shape.rounds):
        for way in WAYS:
            found[way].append(_in_a_process(way, shape))
    first = {way: results[0] for way, results in found.items()}
    for name in ("logprob", "grad", "weight_grad"):
        a, b = first["plain"][name], first["ours"][name]
        assert abs(a - b) <= 1e-4 * max(abs(a), 1), f"the two ways disagree: {name} {a} and {b}"
    peak = {way: statistics.median(r["bytes"] for r in results) for way, results in found.items()}
    seconds = {way: statistics.median(r["seconds"] for r in results) for way, results in found.items()}
    clock = "s" if shape.device.startswith("cuda") else "CPU-s"

    def gradients(tokens: int) -> int:
        return 4 * shape.width * (tokens + shape.vocabulary)

    logits = 4 * shape.tokens * shape.vocabulary
    copies = (peak["plain"] - gradients(shape.tokens)) / logits
    chunks = peak["ours"] - gradients(shape.tokens)
    print(f"{shape.tokens} tokens x {shape.vocabulary} vocabulary, width {shape.width}, {shape.device}, float32;")
    print(
        f"logits {logits / MIB:.0f} MiB, gradients of hidden states and head {gradients(shape.tokens) / MIB:.0f} MiB,"
    )
    print(f"a chunk {4 * CHUNK_LOGITS / MIB:.0f} MiB; median of {shape.rounds}\n")
    for way in WAYS:
        print(f"{way:6} peak {peak[way] / MIB:8.0f} MiB   {seconds[way]:6.2f} {clock}")
    print(f"ratio  peak {peak['plain'] / peak['ours']:8.1f} x     {seconds['plain'] / seconds['ours']:6.2f} x")
    print(f"without the gradients, which both need: {(peak['plain'] - gradients(shape.tokens)) / chunks:.1f} x\n")
    full = {
        "plain": copies * 4 * shape.full_tokens * shape.vocabulary + gradients(shape.full_tokens),
        "ours": chunks + gradients(shape.full_tokens),
    }
    print(f"the plain way holds {copies:.1f} times the logits, ours {chunks / (4 * CHUNK_LOGITS):.1f} chunks; so at")
    whole = {way: f"{way} {size / MIB:.0f} MiB" for way, size in full.items()}
    ratio = full["plain"] / full["ours"]
    print(f"{shape.full_tokens} tokens, worked out: {whole['plain']}, {whole['ours']}, ratio {ratio:.1f} x")


if __name__ == "__main__":
    main()
