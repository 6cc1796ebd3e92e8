"""Where the time of a step goes: operations of every stage, and the seconds that the machines need at least.

A forward pass costs a token 2 operations for every parameter that it is multiplied with; a backward pass twice that, or
once where only an adapter is trained. Attention adds 2 · layers · width of the queries · s² for a row of s tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mempo.cluster.model_shape import DecoderShape
from mempo.cluster.plan_memory import GB, Memory, kv_bytes_on_gpu
from mempo.cluster.plan_tokens import StepTokens, new_tokens, probe_rows, prompt_tokens, row_tokens
from mempo.config.plan import PlanSettings

TERA = 1e12


@dataclass(frozen=True)
class Stage:
    name: str
    operations: float
    seconds: float


@dataclass(frozen=True)
class Times:
    """`waves`: how often a server is filled before all its rollouts are played; `at_once`: how many it plays.
    `rollout_s`: until a rollout of mean length ends; the longest ends later, and the step waits for it."""

    stages: tuple[Stage, ...]
    waves: int
    at_once: int
    rollout_s: float

    @property
    def total_s(self) -> float:
        return sum(stage.seconds for stage in self.stages)


def times_of(s: PlanSettings, shape: DecoderShape, tokens: StepTokens, memory: Memory) -> Times:
    trained = [(tokens.trajectories, length) for length in row_tokens(s)]
    forward = forward_operations(shape, trained)
    backward = (2 if s.lora_rank is None else 1) + s.gradient_checkpointing
    per_server = -(-tokens.trajectories * s.tensor_parallel // s.gpus)
    waves = -(-per_server // max(min(memory.contexts, s.max_num_seqs), 1))
    at_once = -(-per_server // waves)
    prefill = _prefill_operations(s, shape)
    decode = _decode_operations(s, shape)
    stages = [
        Stage("prefill", prefill, _compute_s(s, prefill)),
        Stage("decode", decode, max(_decode_s(s, shape, waves, at_once), _compute_s(s, decode))),
        Stage("search", 0.0, waves * (s.turns - 1) * s.search_s),
    ]
    rollout_s = sum(stage.seconds for stage in stages)
    spread = sum(stage.seconds for stage in stages if stage.name != "prefill")  # what grows with a rollout's length
    stages.append(Stage("the longest rollout", 0.0, (s.slowest - 1) * spread))
    passes = {
        "old log-probs": forward * s.recompute_logprobs,
        "reference": forward * s.reference,
        "memory signal": forward_operations(shape, probe_rows(s)),
        "update": forward * (1 + backward),
    }
    stages += [Stage(name, operations, _compute_s(s, operations)) for name, operations in passes.items()]
    return Times(tuple(stages), waves, at_once, rollout_s)


def forward_operations(shape: DecoderShape, rows: Iterable[tuple[int, int]]) -> float:
    """Of rows given as (how many, tokens of each), each by itself."""
    return float(sum(count * row_operations(shape, 0, length) for count, length in rows))


def row_operations(shape: DecoderShape, before: int, tokens: int) -> int:
    """A forward pass over `tokens` that see `before` tokens and one another."""
    attention = 2 * shape.layers * shape.query_width * ((before + tokens) ** 2 - before**2)
    return 2 * shape.multiplied * tokens + attention


def _prefill_operations(s: PlanSettings, shape: DecoderShape) -> float:
    """With a prefix cache that holds everything."""
    later = sum(
        row_operations(shape, prompt_tokens(s, t) - new_tokens(s, t), new_tokens(s, t)) for t in range(2, s.turns + 1)
    )
    return float(s.questions * (row_operations(shape, 0, s.question_tokens) + s.rollouts * later))


def _decode_operations(s: PlanSettings, shape: DecoderShape) -> float:
    turns = sum(row_operations(shape, prompt_tokens(s, t), s.turn_tokens) for t in range(1, s.turns + 1))
    return float(s.questions * s.rollouts * turns)


def _decode_s(s: PlanSettings, shape: DecoderShape, waves: int, at_once: int) -> float:
    """Every step of decoding reads the weights once, and the keys and values of all contexts at work."""
    context = sum(prompt_tokens(s, t) + s.turn_tokens / 2 for t in range(1, s.turns + 1)) / s.turns
    read = s.compute_bytes * shape.parameters / s.tensor_parallel + at_once * context * kv_bytes_on_gpu(s, shape)
    return waves * s.turns * s.turn_tokens * read / (s.gpu_bandwidth_gb_s * GB * s.decode_efficiency)


def _compute_s(s: PlanSettings, operations: float) -> float:
    return operations / (s.gpus * s.gpu_tflops * TERA * s.train_efficiency)
