"""Starting vLLM inside this process, and the one place that knows its Python interface."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mempo.config.engine import SamplerSettings
from mempo.engine.policy import Policy
from mempo.errors import UserError
from mempo.rollout.interfaces import SamplingParams

MIB = 1 << 20
LAST_SEED = (1 << 63) - 1
"""vLLM's seeds are signed 64-bit numbers, and -1 means none."""


def require_vllm() -> None:
    """Refuse `sampler.engine=vllm` without vLLM; it is not imported, which takes seconds.

    Raises:
        UserError: it is not installed.
    """
    if importlib.util.find_spec("vllm") is None:
        raise UserError(
            "sampler.engine is vllm, but vLLM is not installed; pip install 'mempo[vllm]', or set sampler.engine=local"
        )


@contextmanager
def said_by_vllm(doing: str, remedy: str) -> Iterator[None]:
    """Whatever vLLM raises becomes one line.

    Raises:
        UserError: what it was doing, its error and what may help.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # vLLM raises all kinds
        lines = str(error).strip().splitlines() or [""]
        raise UserError(f"vLLM failed while {doing} ({type(error).__name__}: {lines[0]}); {remedy}") from error


def start_engine(policy: Policy, settings: SamplerSettings, window_tokens: int) -> Any:
    """A `vllm.LLM` of the policy's shape, in this process, with weights that mean nothing yet.

    Its log-probs are those of the distribution that it samples from. Prompt and reply together have `window_tokens` at
    most.

    Raises:
        UserError: vLLM does not start.
    """
    # In a process of its own, tensors could not be handed over; and it reports to its makers unless told not to.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    for name, value in (("VLLM_NO_USAGE_STATS", "1"), ("VLLM_LOGGING_LEVEL", "ERROR")):
        os.environ.setdefault(name, value)
    remedy = (
        f"change sampler.gpu_memory_fraction (now {settings.gpu_memory_fraction:g}), try sampler.compile=false, or set "
        "sampler.engine=local; VLLM_LOGGING_LEVEL=INFO in the environment shows more"
    )
    with said_by_vllm("starting", remedy), tempfile.TemporaryDirectory(prefix="mempo-vllm-") as folder:
        _save_shape(policy, Path(folder))
        vllm: Any = importlib.import_module("vllm")
        return vllm.LLM(
            model=folder,
            load_format="dummy",
            dtype=str(policy.model.dtype).removeprefix("torch.") if settings.dtype == "model" else settings.dtype,
            max_model_len=window_tokens,
            max_num_seqs=settings.max_rows,
            gpu_memory_utilization=settings.gpu_memory_fraction,
            kv_cache_memory_bytes=settings.kv_cache_mib * MIB if settings.kv_cache_mib else None,
            enforce_eager=not settings.compile,
            logprobs_mode="processed_logprobs",
            generation_config="vllm",  # not the defaults that the model's folder may hold
            enable_prefix_caching=True,
            trust_remote_code=False,
            use_tqdm_on_load=False,
            seed=0,
        )


def _save_shape(policy: Policy, folder: Path) -> None:
    """Configuration and tokenizer, without weights."""
    model = policy.model if policy.adapter is None else policy.adapter.base.model
    config = copy.deepcopy(model.config)
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    policy.tokenizer.hf.save_pretrained(folder)


def vllm_params(sampling: Sequence[SamplingParams], seeds: Sequence[int], eos_ids: Sequence[int]) -> list[Any]:
    """Our parameters in vLLM's words. Every end-of-sequence token of ours ends a reply and no other one; special tokens
    are part of the text in which stop strings are looked for."""
    vllm: Any = importlib.import_module("vllm")
    return [
        vllm.SamplingParams(
            max_tokens=one.max_new_tokens,
            temperature=one.temperature,
            top_p=one.top_p,
            top_k=one.top_k,
            seed=seed & LAST_SEED,
            stop=list(one.stop),
            stop_token_ids=list(eos_ids),
            ignore_eos=True,
            logprobs=0,
            detokenize=bool(one.stop),
            skip_special_tokens=False,
            spaces_between_special_tokens=False,
        )
        for one, seed in zip(sampling, seeds, strict=True)
    ]
