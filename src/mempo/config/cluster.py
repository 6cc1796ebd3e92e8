"""Settings of a run on a cluster: machines, engines and how verl cuts up its work. What is learnt is said elsewhere."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator

from mempo.config.base import Settings, leaves

_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")


Logger = Literal["console", "wandb", "tensorboard", "mlflow", "swanlab", "clearml", "trackio"]


class ClusterSettings(Settings):
    """How a run is spread over machines. Nothing here but `recompute_logprobs` and `verl` changes what is learnt."""

    nodes: int = Field(default=1, ge=1)
    """Machines. The output folder must be the same on all of them."""
    gpus_per_node: int = Field(default=8, ge=1)
    """GPUs of each machine."""
    engine: Literal["vllm", "sglang"] = "vllm"
    """Who generates during rollouts; it must be installed beside verl."""
    tensor_parallel: int = Field(default=1, ge=1)
    """GPUs of one rollout server; the model, its keys and values must fit into them."""
    gpu_memory_fraction: float = Field(default=0.5, gt=0, lt=1)
    """Share of a GPU for the rollout server: weights, keys and values. It is given back while the policy is updated."""
    agent_workers: int | None = Field(default=None, ge=1)
    """Processes that play rollouts and call tools, spread over the nodes. None: 8, or fewer for fewer questions."""
    micro_batch_tokens: int = Field(default=16_384, ge=1)
    """Tokens of one forward and backward pass on a GPU; changes memory and speed, never the result."""
    score_batch_tokens: int | None = Field(default=None, ge=1)
    """The same for passes without a gradient: log-probs and the memory signal, whose rows may be longer than those of
    training. None: `micro_batch_tokens`. A longer row has no memory signal and is counted (`too_long`)."""
    sequence_parallel: int = Field(default=1, ge=1)
    """GPUs that share a row (Ulysses), for rows too long for one; it multiplies the two limits above."""
    offload_parameters: bool = False
    """Keep weights in main memory while they are not used; slower."""
    offload_optimizer: bool = False
    """Keep the optimizer's state in main memory while it is not used; slower."""
    recompute_logprobs: bool = True
    """Compute old log-probs with the policy's own engine, as in the original. Off: use those of the rollout server,
    which saves a pass; servers round differently, so the ratio does not begin at 1."""
    test_every: int = Field(default=20, ge=0)
    """Play the test questions every n-th step, and before the first; 0: never."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """How many of the newest checkpoints are kept. An old one is removed once the next is complete, so 1 needs room
    for two. A checkpoint holds the weights twice and the optimizer's state: 16 bytes per parameter in float32."""
    loggers: tuple[Logger, ...] = ("console",)
    """Where verl sends its measures besides metrics.jsonl of the run folder."""
    project: str = Field(default="mempo", min_length=1)
    """The project's name for loggers; the experiment's is that of the run folder."""
    verl: dict[str, Any] = Field(default_factory=dict)
    """verl's own settings by dotted key, which win over everything made from this configuration, such as
    `{actor_rollout_ref.rollout.max_num_seqs: 512}`. docs/verl-keys.md says which keys may be set; a launch refuses
    the others."""

    @field_validator("verl", mode="before")
    @classmethod
    def _dotted(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        flat: dict[str, Any] = {}
        for key, leaf in leaves(value):
            if key in flat:
                raise ValueError(f"{key} is given twice")
            flat[key] = leaf
        for key in flat:
            if not _KEY.fullmatch(key):
                raise ValueError(f"{key!r} is not a key of verl's; write it dotted, as actor_rollout_ref.rollout.seed")
        for key in flat:
            above = next((other for other in flat if other != key and key.startswith(f"{other}.")), None)
            if above is not None:
                raise ValueError(f"{above} and {key} are both given; the first would undo the second")
        return flat

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def scored_tokens(self) -> int:
        """The longest row that can be scored, over all GPUs that share it."""
        return (self.score_batch_tokens or self.micro_batch_tokens) * self.sequence_parallel
