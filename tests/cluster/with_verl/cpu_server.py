# pyright: reportMissingImports=false
"""The rollout server of `cpu_node.py`, and the worker side that hands it weights."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import ray
import torch
from peft import LoraConfig, PeftModel, get_peft_model, set_peft_model_state_dict
from transformers import AutoModelForCausalLM, AutoTokenizer
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, TokenOutput

from tests.cluster.with_verl.scripted import next_turn

FAILS_FROM = "MEMPO_CPU_SERVER_FAILS_FROM"
"""Variable: with the weights of this step and later ones every request fails."""


def server_name(rank: int) -> str:
    return f"cpu_server_{rank}"


class Fresh:
    """Numbers the rollouts of a question that begin with the same weights, whichever server they come to."""

    def __init__(self) -> None:
        self.seen: dict[tuple[int | None, tuple[int, ...]], int] = {}

    def number(self, step: int | None, prompt_ids: list[int]) -> int:
        key = (step, tuple(prompt_ids))
        self.seen[key] = self.seen.get(key, -1) + 1
        return self.seen[key]


class CpuServer:
    """Says its script, token by token as the tokenizer has it, with the log-probs of the weights that it was given."""

    def __init__(self, path: str) -> None:
        torch.set_num_threads(1)
        self.tokenizer = AutoTokenizer.from_pretrained(path)
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self.fresh = ray.remote(Fresh).options(name="fresh", num_cpus=0, get_if_exists=True).remote()
        self.step: int | None = None
        self.fails_from = int(os.environ.get(FAILS_FROM, "1000000"))
        self.lock = asyncio.Lock()

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict, **_: Any) -> TokenOutput:
        if self.step is not None and self.step >= self.fails_from:
            raise ConnectionError("the server is gone")
        number = await self.fresh.number.remote(self.step, prompt_ids)
        text = next_turn(self.tokenizer.decode(prompt_ids), number)
        ids = self.tokenizer.encode(text, add_special_tokens=False)[: sampling_params["max_tokens"]]
        temperature = sampling_params["temperature"] or 1.0
        async with self.lock:
            with torch.no_grad():
                logits = self.model(torch.tensor([[*prompt_ids, *ids]])).logits[0, len(prompt_ids) - 1 : -1]
        logprobs = torch.log_softmax(logits.float() / temperature, -1)
        found = logprobs[torch.arange(len(ids)), torch.tensor(ids)].tolist()
        return TokenOutput(
            token_ids=ids, log_probs=found, stop_reason="completed", extra_fields={"global_steps": self.step}
        )

    async def load(self, weights: dict[str, torch.Tensor], adapter: dict[str, Any] | None, step: int | None) -> None:
        """All weights, or those of an adapter (its peft configuration) on top of the weights read from the folder."""
        if adapter is None:
            self.model.load_state_dict(weights, strict=False)
        else:
            if not isinstance(self.model, PeftModel):
                self.model = get_peft_model(self.model, LoraConfig(**adapter)).eval()
            found = set_peft_model_state_dict(self.model, weights)
            assert not found.unexpected_keys
        self.step = step

    async def wake_up(self) -> None: ...
    async def sleep(self) -> None: ...
    async def clear_kv_cache(self) -> None: ...
    async def release_kv_cache(self) -> None: ...
    async def resume_kv_cache(self) -> None: ...
    async def abort_all_requests(self, **_: Any) -> None: ...
    async def resume_generation(self) -> None: ...


class CpuReplica(RolloutReplica):
    async def launch_servers(self) -> None:
        server = ray.remote(CpuServer).options(name=server_name(self.replica_rank), num_cpus=0, max_concurrency=100)
        handle = server.remote(self.model_config.path)
        await handle.wake_up.remote()
        self.servers = [handle]
        self._server_handle, self._server_address = handle, server_name(self.replica_rank)


class ServerAdapter(BaseRollout):
    """In the trainer's process: one server a rank."""

    async def resume(self, tags: list[str]) -> None: ...
    async def release(self) -> None: ...

    async def update_weights(
        self,
        weights: Any,
        global_steps: int | None = None,
        peft_config: Any = None,
        base_sync_done: bool = True,
        **_: Any,
    ) -> None:
        rank = torch.distributed.get_rank()
        adapter = dict(peft_config) if peft_config is not None and base_sync_done else None
        whole = {name: _full(tensor).detach().float().clone() for name, tensor in weights}
        server = ray.get_actor(server_name(rank))
        await server.load.remote(whole, adapter, global_steps)


def _full(tensor: Any) -> torch.Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
