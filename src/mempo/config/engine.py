"""Settings of the policy: which model, its adapters, and who samples."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from mempo.config.base import Settings


class LoraSettings(Settings):
    """Low-rank adapters (LoRA, arXiv 2106.09685): W + (alpha / rank) B A is used, and only A and B are trained."""

    rank: int = Field(default=16, ge=1)
    """Rows of A and columns of B."""
    alpha: float = Field(default=32.0, gt=0, allow_inf_nan=False)
    """The adapter's product counts alpha / rank times."""
    targets: Literal["all-linear"] | tuple[str, ...] = "all-linear"
    """Names of the layers that get an adapter (q_proj, v_proj, …); `all-linear` means every linear layer but the
    head."""

    @field_validator("targets")
    @classmethod
    def _some(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        if not value:
            raise ValueError("targets names no layer; leave it at all-linear, or name some, as [q_proj, v_proj]")
        return value


class ModelSettings(Settings):
    """Which model, where and how."""

    path: str | None = None
    """A folder (or hub name) with config.json, tokenizer.json and *.safetensors."""
    device: str = "auto"
    """`auto` takes CUDA where there is one."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Precision of the weights, of sampling and of scoring."""
    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    """How attention is computed; `flash_attention_2` needs its package and a GPU."""
    threads: int = Field(default=0, ge=0, le=1024)
    """CPU threads of torch; 0 leaves its own choice."""
    gradient_checkpointing: bool = False
    """Compute the activations of a layer again in the backward pass instead of keeping them: a third more work, a
    fraction of the memory."""
    autocast: Literal["none", "bfloat16"] = "none"
    """Precision of the layers' matrix products in the update; weights, optimizer, head and softmax stay in float32.
    Sampling and scoring keep `dtype`, so the updated policy differs from the sampled one by rounding
    (`update/k3_old`)."""
    lora: LoraSettings | None = None
    """Train low-rank adapters instead of all weights; needs `pip install 'mempo[lora]'`."""

    @model_validator(mode="after")
    def _autocast_of_float32(self) -> ModelSettings:
        if self.autocast != "none" and self.dtype != "float32":
            raise ValueError(
                f"autocast {self.autocast} is for weights in float32, and dtype is {self.dtype}; set one of them back "
                "(dtype=float32 or autocast=none)"
            )
        return self


class SamplerSettings(Settings):
    """Who generates during rollouts and evaluation. All keys but `engine` are vLLM's."""

    engine: Literal["local", "vllm"] = "local"
    """`local`: the policy itself. `vllm`: a second copy of its weights in vLLM's engine, in this process; needs
    `pip install 'mempo[vllm]'`."""
    gpu_memory_fraction: float = Field(default=0.3, gt=0, lt=1)
    """Share of the device's memory for vLLM's weights, keys and values together; the update uses the rest. With a
    CPU build of vLLM it is a share of the main memory."""
    kv_cache_mib: int | None = Field(default=None, ge=1)
    """MiB for keys and values, instead of what `gpu_memory_fraction` leaves for them."""
    max_rows: int = Field(default=256, ge=1)
    """Sequences that are generated at once."""
    dtype: Literal["model", "float32", "bfloat16", "float16"] = "model"
    """Precision of vLLM's copy; `model`: that of the policy (`model.dtype`)."""
    compile: bool = True
    """Let vLLM compile the model and record CUDA graphs: a slower start, faster generation."""
    check_weights: bool = True
    """Compare digests of the weights on both sides each time they are renewed."""
