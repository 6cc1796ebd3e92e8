"""Which engine samples, and what vLLM may take of the machine."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from mempo.settings import Settings


class SamplerSettings(Settings):
    """Who generates during rollouts and evaluation. All keys but `engine` are vLLM's."""

    engine: Literal["local", "vllm"] = "local"
    """`local`: the policy itself. `vllm`: a second copy of its weights in vLLM's engine, in this process; needs
    `pip install 'mempo[vllm]'`."""
    gpu_memory_fraction: float = Field(default=0.3, gt=0, lt=1)
    """Share of the device's memory for vLLM's weights, keys and values together; the rest is the update's. With a CPU
    build of vLLM it is a share of the main memory."""
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

    @model_validator(mode="after")
    def _keys_of_vllm(self) -> SamplerSettings:
        given = [name for name in type(self).model_fields if name != "engine"]
        idle = [name for name in given if getattr(self, name) != type(self).model_fields[name].default]
        if self.engine != "vllm" and idle:
            raise ValueError(
                f"engine is {self.engine}, so {idle[0]}={getattr(self, idle[0])!r} would do nothing; unset it, or set "
                "engine=vllm"
            )
        return self
