"""What a plan is made from: the run, the machines, and the numbers that are assumed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from mempo.cluster.constraints import has_reference, server_rollouts
from mempo.config import Config
from mempo.config.cluster import ClusterSettings
from mempo.config.overrides import settings_from
from mempo.config.plan import PlanSettings
from mempo.errors import ConfigError

_KEYS = {
    "gpus": "cluster.nodes * cluster.gpus_per_node",
    "lora_rank": "model.lora.rank",
    "gradient_checkpointing": "model.gradient_checkpointing",
    **{
        name: f"cluster.{name}"
        for name in ("gpu_memory_fraction", "tensor_parallel", "micro_batch_tokens", "offload_optimizer")
    },
    "offload_parameters": "cluster.offload_parameters",
}
"""What a plan proposes, as a configuration calls it."""
_NUMBER_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def plan_settings(given: Mapping[str, Any], overrides: Sequence[str] = ()) -> PlanSettings:
    """Checked settings: what is `given`, and `key=value` over it.

    Raises:
        ConfigError: no model, an unknown key or a value that cannot be.
    """
    if not given.get("model") and not any(override.startswith("model=") for override in overrides):
        raise ConfigError("no model is named; give model=Qwen2.5-7B, or a configuration with model.path")
    return settings_from(PlanSettings, overrides, given)


def settings_of_config(config: Config) -> dict[str, Any]:
    """What a configuration says. Limits are taken for what rollouts are: a plan errs on the large side."""
    rl, model, limits, cluster = config.rl, config.model, config.limits, config.cluster or ClusterSettings()
    defaults = PlanSettings.model_fields
    turn = min(limits.max_turn_tokens, defaults["turn_tokens"].default)
    compute = model.autocast if model.autocast != "none" else model.dtype
    found: dict[str, Any] = {
        "questions": rl.questions_per_step,
        "rollouts": rl.rollouts_per_question,
        "updates": rl.updates_per_step,
        "turns": limits.max_turns,
        "agent_context": config.agent.context,
        "context_tokens": limits.max_context_tokens,
        "turn_tokens": turn,
        "note_tokens": min(defaults["note_tokens"].default, turn // 2),
        "action_tokens": min(defaults["action_tokens"].default, turn // 4),
        "observation_tokens": min(limits.max_obs_tokens, defaults["observation_tokens"].default),
        "memory_signal": rl.memory_signal,
        "baseline": config.memory.baseline,
        "lookahead": config.memory.lookahead.k,
        "reference": has_reference(config),
        "recompute_logprobs": cluster.recompute_logprobs,
        "lora_rank": model.lora.rank if model.lora else None,
        "weight_bytes": _NUMBER_BYTES[model.dtype],
        "compute_bytes": _NUMBER_BYTES[compute],
        "gradient_checkpointing": model.gradient_checkpointing,
        "micro_batch_tokens": cluster.micro_batch_tokens,
        "gpus": cluster.gpus,
        "gpus_per_node": cluster.gpus_per_node,
        "tensor_parallel": cluster.tensor_parallel,
        "sequence_parallel": cluster.sequence_parallel,
        "gpu_memory_fraction": cluster.gpu_memory_fraction,
        "offload_parameters": cluster.offload_parameters,
        "offload_optimizer": cluster.offload_optimizer,
        "engine": cluster.engine,
        "max_num_seqs": server_rollouts(cluster),
    }
    return found | ({"model": model.path} if model.path else {})


def keys_of_config(message: str) -> str:
    """A remedy of the plan (`set gpus=16`) with the keys of a configuration."""
    return re.sub(r"\b[a-z_]+(?==)", lambda found: _KEYS.get(found[0], found[0]), message)
