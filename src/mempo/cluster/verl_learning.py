"""How the policy learns, in verl's words: precision, adapters, optimizer, loss. Exactly the same, or refused."""

from __future__ import annotations

from typing import Any

from mempo.cluster.constraints import has_reference
from mempo.config import Config
from mempo.config.cluster import ClusterSettings
from mempo.config.engine import ModelSettings
from mempo.config.train import OptimSettings
from mempo.errors import ConfigError

KL_TYPES = {"k1": "kl", "k2": "mse", "k3": "low_var_kl"}
"""Our estimators by verl's names; the formulas are the same, k3 cut at 10 there."""

_NO_DUAL_CLIP = 1e9
"""verl cuts the loss of a negative advantage where the ratio exceeds `clip_ratio_c`. Our loss has no such cut. verl
holds the ratio below e^20, about 4.9e8, so this value never acts."""


def check_learning(config: Config) -> None:
    """Refuse what verl has no equal of.

    Raises:
        ConfigError: the setting, why it cannot be, and the remedy.
    """
    rl, model = config.rl, config.model
    if rl.loss.aggregate != "token_mean":
        raise ConfigError(
            f"rl.loss.aggregate {rl.loss.aggregate} has no equal in verl, which knows rows and no rollouts; set "
            "rl.loss.aggregate=token_mean"
        )
    _check_optimizer(rl.optim)
    if model.dtype == "float16":
        raise ConfigError(
            "model.dtype float16 makes verl scale the loss, which we do not; set model.dtype=float32 and "
            "model.autocast=bfloat16"
        )
    if model.attention == "flash_attention_2" and compute_dtype(model) == "float32":
        raise ConfigError(
            "model.attention flash_attention_2 computes in 16 bits only; set model.autocast=bfloat16, or "
            "model.attention=sdpa"
        )
    lora = model.lora
    if lora is not None and lora.alpha != int(lora.alpha):
        raise ConfigError(f"model.lora.alpha {lora.alpha:g} must be a whole number for verl; set {round(lora.alpha)}")


def _check_optimizer(optim: OptimSettings) -> None:
    if optim.kind != "adamw":
        raise ConfigError(f"rl.optim.kind {optim.kind} is not among verl's optimizers; set rl.optim.kind=adamw")
    if optim.schedule == "linear":
        raise ConfigError(
            "rl.optim.schedule linear is not among verl's schedules; set rl.optim.schedule=cosine or constant"
        )
    if optim.warmup_steps > 1:  # one step of ours is at the full rate already
        raise ConfigError(
            f"rl.optim.warmup_steps {optim.warmup_steps}: verl's warm-up begins at a rate of 0, one step behind ours; "
            "set rl.optim.warmup_steps=0, and take verl's own with "
            f"cluster.verl={{actor_rollout_ref.actor.optim.lr_warmup_steps: {optim.warmup_steps}}}"
        )


def compute_dtype(model: ModelSettings) -> str:
    """The precision of the layers' products, and so of the rollout server."""
    return model.autocast if model.autocast != "none" else model.dtype


def model_section(model: ModelSettings, path: str) -> dict[str, Any]:
    section: dict[str, Any] = {
        "path": path,
        "enable_gradient_checkpointing": model.gradient_checkpointing,
        # Rows packed end to end are told apart by flash attention alone.
        "use_remove_padding": model.attention == "flash_attention_2",
        "override_config": {"attn_implementation": model.attention},
    }
    if model.lora is not None:
        targets = model.lora.targets
        section |= {
            "lora_rank": model.lora.rank,
            "lora_alpha": int(model.lora.alpha),
            "target_modules": targets if isinstance(targets, str) else list(targets),
        }
    return section


def precision(model: ModelSettings) -> dict[str, Any]:
    """verl's FSDP settings of precision; gradients are always summed in float32."""
    return {
        "model_dtype": model.dtype,
        "mixed_precision": {
            "param_dtype": compute_dtype(model),
            "reduce_dtype": "float32",
            "buffer_dtype": "float32",
        },
    }


def actor_section(config: Config, settings: ClusterSettings) -> dict[str, Any]:
    rl, loss = config.rl, config.rl.loss
    return {
        "strategy": "fsdp2",
        "ppo_mini_batch_size": rl.questions_per_step // rl.updates_per_step,
        "ppo_epochs": 1,
        "shuffle": False,
        "use_dynamic_bsz": True,
        "ppo_max_token_len_per_gpu": settings.micro_batch_tokens,
        "ulysses_sequence_parallel_size": settings.sequence_parallel,
        "clip_ratio_low": loss.clip_low,
        "clip_ratio_high": loss.clip_high,
        "clip_ratio_c": _NO_DUAL_CLIP,
        "loss_agg_mode": "token-mean",
        "entropy_coeff": 0,
        "use_kl_loss": has_reference(config),
        "kl_loss_type": KL_TYPES.get(loss.kl, "low_var_kl"),
        "kl_loss_coef": loss.kl_coef,
        "optim": _optimizer(rl.optim),
        "fsdp_config": {
            **precision(config.model),
            # With it every GPU would keep the gradients of all weights from one micro-batch to the next.
            "use_no_sync_for_gradient_accumulation": False,
            "param_offload": settings.offload_parameters,
            "optimizer_offload": settings.offload_optimizer,
        },
        "checkpoint": {
            # hf_model: safetensors, so that a checkpoint becomes a model without unpickling anything.
            "save_contents": ["model", "optimizer", "extra", "hf_model"],
            "load_contents": ["model", "optimizer", "extra"],
        },
    }


def _optimizer(optim: OptimSettings) -> dict[str, Any]:
    """AdamW, stepped and scheduled as ours: the rate is a function of the step, whatever `updates_per_step`."""
    return {
        "optimizer": "AdamW",
        "optimizer_impl": "torch.optim",
        "lr": optim.lr,
        "betas": [optim.beta1, optim.beta2],
        "weight_decay": optim.weight_decay,
        "clip_grad": optim.max_grad_norm,
        "lr_scheduler_type": optim.schedule,
        "lr_warmup_steps": 0,
        "lr_warmup_steps_ratio": 0.0,
        "min_lr_ratio": optim.min_lr_ratio,
    }
