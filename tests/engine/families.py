"""A tiny random model of every family that is tried, by its `model_type`: what differs from `_BASE`."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

_BASE: dict[str, Any] = {
    "vocab_size": 400,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_HEAD = {"head_dim": 8}
_SLIDING = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
_GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}
_MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
_ROUTED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_group": 1, "topk_group": 1}
_MLA = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "num_key_value_heads": 4,
}
_DEEPSEEK = {**_MLA, **_ROUTED, "first_k_dense_replace": 1}
_INDEXED = {**_DEEPSEEK, "index_n_heads": 2, "index_head_dim": 16, "index_topk": 64}
_MAMBA = {
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_d_state": 16,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 8,
    "mamba_expand": 2,
}
_SSM = {"state_size": 8, "conv_kernel": 4, "expand": 2}
_LINEAR = {
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_conv_kernel_dim": 4,
    "layer_types": ["linear_attention", "full_attention"],
}
_CONV = {"layer_types": ["conv", "full_attention"]}
_VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}

FAMILIES: dict[str, dict[str, Any]] = {
    "afmoe": {**_HEAD, **_DEEPSEEK},
    "apertus": {},
    "arcee": {},
    "bamba": {**_MAMBA, "attn_layer_indices": [1]},
    "bert": {},
    "biogpt": {},
    "bitnet": {},
    "bloom": {"n_layer": 2, "n_head": 4},
    "codegen": {**_GPT, "rotary_dim": 4},
    "cohere": {},
    "cohere2": {"sliding_window": 8},
    "cwm": {**_HEAD, "sliding_window": 8},
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "deepseek_v32": _INDEXED,
    "diffllama": {},
    "doge": {},
    "dots1": {**_DEEPSEEK, **_HEAD, "num_key_value_heads": 2, "n_shared_experts": 1},
    "ernie4_5": _HEAD,
    "ernie4_5_moe": {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 16},
    "exaone4": {**_HEAD, "sliding_window": 8},
    "falcon": {},
    "falcon_h1": {**_MAMBA, "mamba_d_ssm": 64},
    "falcon_mamba": _SSM,
    "flex_olmo": {"num_experts": 4, "num_experts_per_tok": 2},
    "gemma": _HEAD,
    "gemma2": {**_HEAD, "sliding_window": 8},
    "gemma3": {"text_config": {**_BASE, **_HEAD, **_SLIDING}, "vision_config": _VISION},
    "gemma3_text": {**_HEAD, **_SLIDING},
    "gemma3n_text": {
        **_HEAD,
        **_SLIDING,
        "vocab_size_per_layer_input": 400,
        "hidden_size_per_layer_input": 8,
        "num_kv_shared_layers": 0,
        "laurel_rank": 4,
        "activation_sparsity_pattern": [0.0, 0.0],
        "altup_num_inputs": 2,
    },
    "gemma4_text": {
        **_HEAD,
        **_SLIDING,
        "vocab_size_per_layer_input": 400,
        "hidden_size_per_layer_input": 8,
        "global_head_dim": 8,
    },
    "glm": _HEAD,
    "glm4": _HEAD,
    "glm4_moe": {**_DEEPSEEK, **_HEAD, "num_key_value_heads": 2},
    "glm4_moe_lite": _DEEPSEEK,
    "gpt2": _GPT,
    "gpt_bigcode": _GPT,
    "gpt_neo": {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 8},
    "gpt_neox": {},
    "gpt_oss": {**_LOCAL, **_HEAD, **_SLIDING},
    "gptj": {**_GPT, "rotary_dim": 4},
    "granite": {},
    "granitemoe": _LOCAL,
    "granitemoehybrid": {
        **_MAMBA,
        **_LOCAL,
        "layer_types": ["mamba", "attention"],
        "shared_intermediate_size": 16,
    },
    "granitemoeshared": {**_LOCAL, "shared_intermediate_size": 16},
    "helium": _HEAD,
    "hunyuan_v1_dense": _HEAD,
    "hunyuan_v1_moe": {**_HEAD, "num_experts": 4, "moe_topk": 2, "moe_intermediate_size": 16},
    "jamba": {
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "num_experts": 2,
        "mamba_d_state": 8,
        "mamba_dt_rank": 4,
        "use_mamba_kernels": False,
    },
    "jetmoe": {"num_local_experts": 4, "kv_channels": 8},
    "lfm2": _CONV,
    "lfm2_moe": {**_MOE, **_CONV, "num_dense_layers": 1},
    "llama": {},
    "llama4_text": {
        **_LOCAL,
        **_HEAD,
        "intermediate_size_mlp": 64,
        "attention_chunk_size": 8,
        "layer_types": ["chunked_attention", "full_attention"],
        "no_rope_layers": [1, 0],
    },
    "mamba": _SSM,
    "mamba2": {**_SSM, "num_heads": 8, "head_dim": 8, "n_groups": 1, "chunk_size": 8},
    "mimo_v2_flash": {**_HEAD, **_ROUTED, "v_head_dim": 8, "sliding_window": 8},
    "minicpm3": _MLA,
    "minimax": {**_LOCAL, **_HEAD, "layer_types": ["linear_attention", "full_attention"], "block_size": 8},
    "minimax_m2": {**_LOCAL, **_HEAD},
    "ministral": _HEAD,
    "ministral3": _HEAD,
    "mistral": {"sliding_window": None},
    "mixtral": _LOCAL,
    "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 256},
    "nanochat": {},
    "nemotron": {},
    "nemotron_h": {
        **_HEAD,
        "hybrid_override_pattern": "M*",
        "mamba_num_heads": 8,
        "mamba_head_dim": 8,
        "ssm_state_size": 16,
        "n_groups": 1,
        "chunk_size": 8,
    },
    "olmo": {},
    "olmo2": {},
    "olmo3": {},
    "olmo_hybrid": _LINEAR,
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "openai-gpt": _GPT,
    "opt": {"ffn_dim": 64, "word_embed_proj_dim": 32},
    "persimmon": {},
    "phi": {},
    "phi3": {},
    "phimoe": _LOCAL,
    "qwen2": {},
    "qwen2_moe": {**_MOE, "shared_expert_intermediate_size": 16},
    "qwen3": _HEAD,
    "qwen3_5": {"text_config": {**_BASE, **_HEAD, **_LINEAR}},
    "qwen3_5_moe_text": {**_MOE, **_HEAD, **_LINEAR, "shared_expert_intermediate_size": 16},
    "qwen3_5_text": {**_HEAD, **_LINEAR},
    "qwen3_moe": {**_MOE, **_HEAD},
    "qwen3_next": {**_MOE, **_HEAD, **_LINEAR, "shared_expert_intermediate_size": 16},
    "recurrent_gemma": {
        **_HEAD,
        "num_key_value_heads": 1,
        "attention_window_size": 8,
        "lru_width": 32,
        "block_types": ["recurrent", "attention"],
    },
    "roberta": {"is_decoder": True},
    "rwkv": {"attention_hidden_size": 32, "context_length": 256},
    "seed_oss": _HEAD,
    "smollm3": {},
    "solar_open": {**_HEAD, **_DEEPSEEK},
    "stablelm": {},
    "starcoder2": {"sliding_window": None},
    "vaultgemma": {**_HEAD, "sliding_window": 8},
    "xglm": {"d_model": 32, "ffn_dim": 64, "num_layers": 2, "attention_heads": 4},
    "xlstm": {"num_heads": 4, "chunk_size": 8},
    "zamba2": {
        **_MAMBA,
        "mamba_ngroups": 1,
        "num_mem_blocks": 1,
        "chunk_size": 8,
        "layers_block_type": ["mamba", "hybrid"],
        "adapter_rank": 8,
        "num_key_value_heads": 4,
        "use_mem_rope": True,
        "n_mamba_heads": 8,
        "mamba_headdim": 8,
        "mamba_d_state": 16,
    },
}


def family_config(family: str, **changes: Any) -> Any:
    """`changes` go to the text model's part of a composite configuration."""
    said = copy.deepcopy({**_BASE, **FAMILIES[family]})  # configurations write into what they are given
    said.get("text_config", said).update(changes)
    return AutoConfig.for_model(family, **said)


def family_model(family: str, seed: int = 0, **changes: Any) -> Any:
    """With attention sdpa where the family has it, as the default setting asks for, else eager."""
    torch.manual_seed(seed)
    config = family_config(family, **changes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
        except ValueError:
            return AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
