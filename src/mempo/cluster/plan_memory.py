"""Memory of one GPU in the two phases of a step, as verl's FSDP workers use it. All numbers are bytes.

Weights, gradients and optimizer are divided among all GPUs. During rollouts weights and optimizer stay (unless they are
offloaded) beside the rollout server; during the update the server sleeps and everything else is there. The reference,
where it is a model of its own, lies in main memory and passes through layer by layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mempo.cluster.model_shape import DecoderShape
from mempo.cluster.plan_tokens import StepTokens
from mempo.config.plan import PlanSettings
from mempo.errors import UserError

GB = 1e9
ADAM_BYTES = 8
"""Two moments in float32."""
_STEP = 1024
"""Micro-batches are proposed in multiples of it."""
Change = Mapping[str, Any]


@dataclass(frozen=True)
class UpdateMemory:
    """Of one GPU while the policy is trained."""

    weights: float
    gradients: float
    optimizer: float
    gathered: float
    """Layers put together to be computed with: two of them, embeddings and head, and the gradients of one."""
    activations: float
    logits: float
    reserve: float

    @property
    def total(self) -> float:
        fixed = self.weights + self.gradients + self.optimizer + self.gathered
        return fixed + self.activations + self.logits + self.reserve


@dataclass(frozen=True)
class RolloutMemory:
    """Of one GPU during rollouts."""

    weights: float
    optimizer: float
    server_weights: float
    server_overhead: float
    kv_cache: float
    """Room for keys and values: the server's share without its weights and overhead."""
    reserve: float

    @property
    def server(self) -> float:
        return self.server_weights + self.server_overhead + self.kv_cache

    @property
    def total(self) -> float:
        return self.weights + self.optimizer + self.server + self.reserve


@dataclass(frozen=True)
class Memory:
    update: UpdateMemory
    rollout: RolloutMemory
    kv_tokens: int
    """Room of one rollout server, in tokens."""
    contexts: int
    """Longest contexts of this run that fit into it at once."""
    host: float
    """Main memory of one node: the reference, and what is offloaded."""


def memory_of(s: PlanSettings, shape: DecoderShape, tokens: StepTokens) -> Memory:
    """Both phases, whether they fit or not."""
    trained = shape.parameters if s.lora_rank is None else shape.adapter_parameters(s.lora_rank)
    frozen = 0 if s.lora_rank is None else shape.parameters
    weights = s.weight_bytes * (frozen + trained) / s.gpus
    optimizer = ADAM_BYTES * trained / s.gpus
    update = UpdateMemory(
        weights=weights,
        gradients=s.weight_bytes * trained / s.gpus,
        optimizer=optimizer,
        gathered=gathered_bytes(s, shape),
        activations=s.micro_batch_tokens * activation_bytes(s, shape),
        logits=float(s.micro_batch_tokens * shape.vocabulary * s.logit_bytes),
        reserve=s.reserve_gb * GB,
    )
    server_weights = s.compute_bytes * shape.parameters / s.tensor_parallel
    overhead = s.server_overhead_gb * GB
    kv_cache = s.gpu_memory_fraction * s.gpu_memory_gb * GB - server_weights - overhead
    rollout = RolloutMemory(
        weights=0.0 if s.offload_parameters else weights,
        optimizer=0.0 if s.offload_optimizer else optimizer,
        server_weights=server_weights,
        server_overhead=overhead,
        kv_cache=kv_cache,
        reserve=s.reserve_gb * GB,
    )
    kv_tokens = max(math.floor(kv_cache / kv_bytes_on_gpu(s, shape)), 0)
    on_node = min(s.gpus, s.gpus_per_node)
    copy = s.weight_bytes * shape.parameters / s.gpus * on_node if s.reference and s.lora_rank is None else 0.0
    moved = weights * s.offload_parameters + optimizer * s.offload_optimizer
    return Memory(update, rollout, kv_tokens, kv_tokens // tokens.longest_context, copy + moved * on_node)


def gathered_bytes(s: PlanSettings, shape: DecoderShape) -> float:
    """Two layers (one at work, one on its way), embeddings and head in the precision of the layers; and the gradients
    of the largest part, in that precision and in float32 for their sum over the GPUs."""
    ends = shape.table * (1 if shape.tied else 2)
    weights = s.compute_bytes * (2 * shape.layer_parameters + ends)
    gradients = 0 if s.lora_rank is not None else (s.compute_bytes + 4) * max(shape.layer_parameters, shape.table)
    return float(weights + gradients)


def activation_bytes(s: PlanSettings, shape: DecoderShape) -> float:
    """Of one token of a micro-batch. Inside a layer 4 values of the model's width, 3 of the queries' and of the keys',
    4 of the feed-forward's; with checkpointing every layer keeps its input, and one is there with its gradients."""
    layer = 4 * shape.width + 3 * shape.query_width + 3 * shape.kv_width + 4 * shape.ffn_width
    kept = shape.layers * shape.width + layer if s.gradient_checkpointing else shape.layers * layer
    return float(s.compute_bytes * (kept + layer))


def kv_bytes_on_gpu(s: PlanSettings, shape: DecoderShape) -> float:
    """Keys and values of a token on one GPU of a server; heads are divided, and repeated where there are too few."""
    return shape.kv_bytes(s.compute_bytes) / min(s.tensor_parallel, shape.kv_heads)


# --- what does not fit ---------------------------------------------------------------------------------------------


def refuse_unless_fits(s: PlanSettings, shape: DecoderShape, tokens: StepTokens) -> None:
    """Say what does not fit, with the sum and a value that works.

    Raises:
        UserError: a step is longer than the context, or a phase is larger than a GPU.
    """
    if tokens.longest_context > s.context_tokens:
        raise UserError(
            f"the largest step sees and writes {tokens.longest_context} tokens in context {s.agent_context}, more than "
            f"context_tokens {s.context_tokens}; set it to {tokens.longest_context}, or plan fewer or shorter turns"
        )
    if s.micro_batch_tokens * s.sequence_parallel < s.context_tokens:
        raise UserError(
            f"micro_batch_tokens {s.micro_batch_tokens} * sequence_parallel {s.sequence_parallel} holds no row of "
            f"context_tokens {s.context_tokens}; set micro_batch_tokens={-(-s.context_tokens // s.sequence_parallel)}"
        )
    refuse_too_large(s, shape, tokens)


def refuse_too_large(s: PlanSettings, shape: DecoderShape, tokens: StepTokens) -> None:
    """The part of it that looks at the memory of a GPU."""
    memory = memory_of(s, shape, tokens)
    _refuse_rollout(s, shape, tokens, memory)
    _refuse_update(s, shape, tokens, memory)


def _refuse_rollout(s: PlanSettings, shape: DecoderShape, tokens: StepTokens, memory: Memory) -> None:
    phase, card = memory.rollout, s.gpu_memory_gb * GB
    if memory.contexts < 1:
        one = kv_bytes_on_gpu(s, shape) * tokens.longest_context
        needed = phase.server_weights + phase.server_overhead + one
        raise UserError(
            f"the rollout server needs weights {_gb(phase.server_weights)} + overhead {_gb(phase.server_overhead)} + "
            f"one context {_gb(one)} = {_gb(needed)} GB of each GPU, but gpu_memory_fraction {s.gpu_memory_fraction:g} "
            f"* {s.gpu_memory_gb:g} GB = {_gb(s.gpu_memory_fraction * card)}; {_server_remedy(s, shape, tokens)}"
        )
    if phase.total > card:
        raise UserError(
            f"during rollouts a GPU holds weights {_gb(phase.weights)} + optimizer {_gb(phase.optimizer)} + server "
            f"{_gb(phase.server)} + reserve {_gb(phase.reserve)} = {_gb(phase.total)} GB of {s.gpu_memory_gb:g}; "
            f"{_server_remedy(s, shape, tokens)}"
        )


def _server_remedy(s: PlanSettings, shape: DecoderShape, tokens: StepTokens) -> str:
    """The first change that makes room for the server, smallest first."""
    tries: list[Change] = [{"gpu_memory_fraction": round(0.05 * k, 2)} for k in range(18, 1, -1)]
    for tensor in (s.tensor_parallel * 2**k for k in range(1, 4)):
        if s.gpus % tensor == 0:
            tries += [{"tensor_parallel": tensor, "gpu_memory_fraction": round(0.05 * k, 2)} for k in range(18, 1, -1)]
    moved = {"offload_optimizer": True}
    tries += [{**change, **more} for more in (moved, {**moved, "offload_parameters": True}) for change in list(tries)]

    def works(changed: PlanSettings) -> bool:
        memory = memory_of(changed, shape, tokens)
        return memory.contexts >= 1 and memory.rollout.total <= changed.gpu_memory_gb * GB

    return _first(s, tries, works) or "take larger GPUs, or a smaller model"


def _refuse_update(s: PlanSettings, shape: DecoderShape, tokens: StepTokens, memory: Memory) -> None:
    phase, card = memory.update, s.gpu_memory_gb * GB
    if phase.total <= card:
        return
    fixed = phase.total - phase.activations - phase.logits
    per_token = (phase.activations + phase.logits) / s.micro_batch_tokens
    fitting = math.floor((card - fixed) / per_token / _STEP) * _STEP
    shortest = -(-s.context_tokens // s.sequence_parallel)
    tries: list[Change] = [{"micro_batch_tokens": fitting}] if fitting >= shortest else []
    least = {"micro_batch_tokens": shortest}
    tries += [{**least, "gradient_checkpointing": True}]
    tries += [{**least, "gpus": s.gpus * 2**k} for k in range(1, 6)]
    tries += [{**least, "gradient_checkpointing": True, "lora_rank": 32}]

    def works(changed: PlanSettings) -> bool:
        return memory_of(changed, shape, tokens).update.total <= card

    raise UserError(
        f"in the update a GPU holds weights {_gb(phase.weights)} + gradients {_gb(phase.gradients)} + optimizer "
        f"{_gb(phase.optimizer)} + gathered layers {_gb(phase.gathered)} + activations {_gb(phase.activations)} + "
        f"logits {_gb(phase.logits)} + reserve {_gb(phase.reserve)} = {_gb(phase.total)} GB of {s.gpu_memory_gb:g}; "
        + (_first(s, tries, works) or "take larger GPUs, a smaller model or a shorter context")
    )


def _first(s: PlanSettings, tries: Sequence[Change], works: Callable[[PlanSettings], bool]) -> str | None:
    """The first change that works, in words."""
    for change in tries:
        if works(s.model_copy(update=change)):
            differing = {key: value for key, value in change.items() if getattr(s, key) != value}
            return "set " + " ".join(f"{key}={str(value).lower()}" for key, value in differing.items())
    return None


def _gb(count: float) -> str:
    return f"{count / GB:.1f}"
