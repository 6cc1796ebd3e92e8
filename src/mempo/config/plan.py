"""Settings of a plan of a cluster run: the run, the machines, and the numbers that are assumed."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from mempo.config.base import Settings
from mempo.config.rollout import is_known_context


class PlanSettings(Settings):
    """Everything a plan depends on. Lengths in tokens are means of a rollout that goes all its turns."""

    model: str
    """A folder with config.json, or a known name such as Qwen2.5-7B."""
    # --- the run
    questions: int = Field(default=128, ge=1)
    """Of a step."""
    rollouts: int = Field(default=16, ge=2)
    """Per question."""
    updates: int = Field(default=1, ge=1)
    """Optimizer steps per batch of questions."""
    turns: int = Field(default=8, ge=1)
    """Turns of a rollout."""
    agent_context: str = "memory"
    """What the policy sees: memory, full, react, last_turn, generations, window(k)."""
    context_tokens: int = Field(default=8192, ge=2)
    """The most tokens that one turn may see and write."""
    question_tokens: int = Field(default=80, ge=1)
    """System prompt and question."""
    turn_tokens: int = Field(default=250, ge=1)
    """Written in one turn: note, thought and action."""
    note_tokens: int = Field(default=120, ge=0)
    """Of those, the note."""
    action_tokens: int = Field(default=20, ge=0)
    """Of those, the action."""
    observation_tokens: int = Field(default=600, ge=0)
    """One tool result."""
    probe_tokens: int = Field(default=40, ge=1)
    """The continuation that asks for the answer, gold included."""
    memory_signal: bool = True
    """Whether notes are scored."""
    baseline: Literal["none", "full", "visible", "previous_note"] = "none"
    """What P(mem) is compared with; all but `none` cost one more pass a note."""
    lookahead: int = Field(default=0, ge=0)
    """Tool results that a note is scored ahead with; each costs one more pass a note."""
    reference: bool = True
    """A frozen copy for the KL term (with adapters: the policy without them)."""
    recompute_logprobs: bool = True
    """Whether the policy's engine computes the old log-probs again."""
    # --- how it is trained
    lora_rank: int | None = Field(default=None, ge=1)
    """Rank of adapters; null: all weights are trained."""
    weight_bytes: int = Field(default=4, ge=1)
    """Of a number of the weights and their gradients, as the optimizer sees them."""
    compute_bytes: int = Field(default=2, ge=1)
    """Of a number in the layers and in the rollout server."""
    gradient_checkpointing: bool = True
    """Whether activations are computed again in the backward pass."""
    micro_batch_tokens: int = Field(default=16_384, ge=1)
    """Tokens of one forward and backward pass on a GPU."""
    # --- machines
    gpus: int = Field(default=8, ge=1)
    """Of all nodes."""
    gpus_per_node: int = Field(default=8, ge=1)
    """Of each node."""
    gpu_memory_gb: float = Field(default=80, gt=0, allow_inf_nan=False)
    """10^9 bytes."""
    tensor_parallel: int = Field(default=1, ge=1)
    """GPUs of one rollout server."""
    sequence_parallel: int = Field(default=1, ge=1)
    """GPUs that share a row in training."""
    gpu_memory_fraction: float = Field(default=0.5, gt=0, lt=1)
    """Share of a GPU for the rollout server: weights, keys and values."""
    offload_parameters: bool = False
    """Keep weights in main memory while they are not used."""
    offload_optimizer: bool = False
    """Keep the optimizer's state in main memory while it is not used."""
    engine: Literal["vllm", "sglang"] = "vllm"
    """Who generates during rollouts."""
    max_num_seqs: int = Field(default=256, ge=1)
    """Rollouts that a server plays at once, whatever memory it has (verl's key of that name)."""
    # --- assumed
    gpu_tflops: float = Field(default=312, gt=0, allow_inf_nan=False)
    """10^12 operations a second of one GPU in `compute_bytes` numbers; 312 is an A100, 989 an H100."""
    gpu_bandwidth_gb_s: float = Field(default=2039, gt=0, allow_inf_nan=False)
    """Of its memory; 2039 is an A100 of 80 GB, 3350 an H100."""
    train_efficiency: float = Field(default=0.35, gt=0, le=1)
    """Share of `gpu_tflops` that passes over whole rows reach."""
    decode_efficiency: float = Field(default=0.5, gt=0, le=1)
    """Share of `gpu_bandwidth_gb_s` that decoding reaches."""
    slowest: float = Field(default=2, ge=1, allow_inf_nan=False)
    """How many times longer the longest rollout of a step takes than the mean: the update waits for it."""
    reserve_gb: float = Field(default=4, ge=0, allow_inf_nan=False)
    """Kept free on a GPU: the driver, communication, fragments."""
    server_overhead_gb: float = Field(default=3, ge=0, allow_inf_nan=False)
    """Of the rollout server on each GPU beside weights, keys and values."""
    logit_bytes: int = Field(default=8, ge=1)
    """Per logit in an update: itself and its gradient in 16 bits, and a copy in 32."""
    # --- retrieval
    replica_queries_per_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Measured on one replica of the retrieval service (`python bench/retrieval.py INDEX`). None: the plan does not say
    how many replicas a run needs."""
    search_s: float = Field(default=0.2, ge=0, allow_inf_nan=False)
    """From a query to its result."""
    burst: float = Field(default=3, ge=1, allow_inf_nan=False)
    """The highest rate of queries, relative to the mean of the rollout phase: all rollouts begin together."""

    @field_validator("agent_context")
    @classmethod
    def _known_context(cls, value: str) -> str:
        if not is_known_context(value):
            raise ValueError(
                f"agent_context {value!r} is not a built-in context; take the one that is nearest in length"
            )
        return value

    @model_validator(mode="after")
    def _consistent(self) -> PlanSettings:
        if self.note_tokens + self.action_tokens > self.turn_tokens:
            raise ValueError(
                f"note_tokens {self.note_tokens} + action_tokens {self.action_tokens} are more than turn_tokens "
                f"{self.turn_tokens}, which hold both and a thought; raise turn_tokens"
            )
        for name in ("tensor_parallel", "sequence_parallel"):
            size = getattr(self, name)
            if self.gpus % size:
                raise ValueError(
                    f"gpus {self.gpus} is not a multiple of {name} {size}; {-(-self.gpus // size) * size} is"
                )
        return self
