# pyright: reportMissingImports=false
"""A training step of the plug-in without Ray: our agent loop and trainer, verl's own methods and loss, one process.

What is left out: the transfer queue is a dictionary, ranks are pieces of the batch one after another, rollout servers
are a function. So a step takes a second, and many configurations can be held against the local engine.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from hydra import compose, initialize_config_dir
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from transformers import AutoTokenizer
from verl.trainer.ppo.v1 import agent_loop_tq
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.engine.utils import prepare_micro_batches
from verl.workers.rollout.replica import TokenOutput
from verl.workers.utils.losses import ppo_loss

from mempo.cluster.agent_loop import MempoAgentLoop, RolloutFailed
from mempo.cluster.questions import question_json
from mempo.cluster.run import ClusterRun
from mempo.cluster.trainer import MempoTrainer
from mempo.cluster.verl_config import verl_config
from mempo.config import Resolved
from mempo.config.yaml_text import dump_yaml
from mempo.engine.model import load_policy
from mempo.engine.policy import Policy
from mempo.errors import UserError
from mempo.rollout.question import Question
from tests.cluster.with_verl.one_queue import Queue

Reply = Callable[[str, int, int], str | Exception]
"""`reply(question id, session, turn)`: what the rollout server says; an exception is raised."""


class Workers:
    """A worker group of `ranks`: the model once, and the rows of every rank in turn."""

    def __init__(self, policy: Policy, config: Any, queue: Queue, ranks: int) -> None:
        self.model, self.queue, self.ranks = policy.model, queue, ranks
        self.actor = omega_conf_to_dataclass(config.actor)
        self._dispatch_info = {"actor": list(range(ranks))}
        optim = config.actor.optim
        self.clip_grad = optim.clip_grad
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=optim.lr, betas=tuple(optim.betas), weight_decay=optim.weight_decay
        )
        self.optimizer_steps = 0

    def compute_log_prob(self, data: Any) -> Any:
        batch = self._read(data) if isinstance(data, KVBatchMeta) else data
        assert len(batch) % self.ranks == 0
        with torch.no_grad():
            found = self._forward(batch, entropy=True)
        if not isinstance(data, KVBatchMeta):
            return found
        fields = TensorDict({name: found[name] for name in ("log_probs", "entropy")}, batch_size=[len(batch)])
        self.queue.put(data.keys, data.partition_id, fields)
        return data

    compute_ref_log_prob = compute_log_prob

    def update_actor(self, data: KVBatchMeta) -> dict[str, Any]:
        batch, info = self._read(data), data.extra_info
        piece, own = len(batch) // self.ranks, info["mini_batch_size"] // self.ranks
        assert len(batch) % info["mini_batch_size"] == 0
        made: dict[str, list[float]] = defaultdict(list)
        for first in range(0, piece, own):
            parts = [
                tu.index_select_tensor_dict(batch, torch.arange(rank * piece + first, rank * piece + first + own))
                for rank in range(self.ranks)
            ]
            for name, value in self._step(parts, info).items():
                made[name].append(value)
        return {"metrics": {**made, "mfu": 0.0, "lr": self.optimizer.param_groups[0]["lr"]}}

    def _step(self, parts: list[TensorDict], info: dict[str, Any]) -> dict[str, float]:
        tokens = sum(int(part["loss_mask"].sum()) for part in parts)
        totals: dict[str, float] = defaultdict(float)
        self.optimizer.zero_grad()
        for part in parts:
            tu.assign_non_tensor(
                part,
                batch_num_tokens=tokens,
                dp_size=self.ranks,
                global_batch_size=info["global_batch_size"],
                use_dynamic_bsz=self.actor.use_dynamic_bsz,
                max_token_len_per_gpu=self.actor.ppo_max_token_len_per_gpu,
                micro_batch_size_per_gpu=self.actor.ppo_micro_batch_size_per_gpu,
            )
            micro_batches, _ = prepare_micro_batches(part, same_micro_num_in_dp=False)
            for micro in micro_batches:
                loss, metrics = ppo_loss(self.actor, self._forward(micro), micro)
                (loss / self.ranks).backward()
                totals["loss"] += float(loss.detach()) / self.ranks
                for name in ("actor/pg_loss", "kl_loss"):
                    if name in metrics:
                        totals[name.removeprefix("actor/")] += float(metrics[name].values[0]) / self.ranks
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip_grad)
        self.optimizer.step()
        self.optimizer_steps += 1
        return {**totals, "grad_norm": float(norm)}

    def _read(self, data: KVBatchMeta) -> TensorDict:
        batch = self.queue.get(data.keys, data.partition_id or "")
        tu.assign_non_tensor(batch, temperature=data.extra_info["temperature"])
        return batch

    def _forward(self, batch: TensorDict, entropy: bool = False) -> dict[str, torch.Tensor]:
        found: dict[str, list[torch.Tensor]] = defaultdict(list)
        for ids in batch["input_ids"].unbind():
            logits = self.model(ids[None]).logits[0] / batch["temperature"]
            logprobs = torch.log_softmax(logits.float(), -1)
            found["log_probs"].append(logprobs[torch.arange(len(ids)), torch.roll(ids, -1)])
            if entropy:
                found["entropy"].append(-(logprobs.exp() * logprobs).sum(-1))
        return {name: torch.nested.as_nested_tensor(rows, layout=torch.jagged) for name, rows in found.items()}


class Client:
    """The rollout servers."""

    def __init__(self, policy: Policy, reply: Reply, ids_of_uid: dict[str, str]) -> None:
        self.policy, self.reply, self.ids_of_uid = policy, reply, ids_of_uid
        self.turns: dict[str, int] = defaultdict(int)

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> TokenOutput:
        uid, session = request_id.rsplit("_", 1)
        turn, self.turns[request_id] = self.turns[request_id], self.turns[request_id] + 1
        said = self.reply(self.ids_of_uid[uid], int(session), turn)
        if isinstance(said, Exception):
            raise said
        tokenizer = self.policy.tokenizer
        ids = tokenizer.encode_trusted(said.removesuffix("<eos>")) + (
            (tokenizer.eos_id,) if said.endswith("<eos>") else ()
        )
        ids = ids[: sampling_params["max_tokens"]]
        with torch.no_grad():
            logits = self.policy.model(torch.tensor([[*prompt_ids, *ids]])).logits[0, len(prompt_ids) - 1 : -1]
        logprobs = torch.log_softmax(logits.float() / (sampling_params["temperature"] or 1.0), -1)
        told = logprobs[torch.arange(len(ids)), torch.tensor(ids)].tolist()
        return TokenOutput(
            token_ids=list(ids), log_probs=told, stop_reason="completed", extra_fields={"global_steps": 1}
        )


class OneProcess:
    """A run up to its first update. After `step`: `metrics` (verl's names), `trainer`, `workers`."""

    def __init__(self, resolved: Resolved, folder: Path, ranks: int) -> None:
        config, made = resolved.config, verl_config(resolved.config, resolved.plain(), folder)
        folder.mkdir(parents=True)
        (folder / "verl.yaml").write_text(dump_yaml(made), encoding="utf-8")
        with initialize_config_dir(str(folder), version_base=None):
            self.config = compose("verl")
        self.queue, self.metrics = Queue(), {}
        path = config.model.path or ""
        self.policy = load_policy(config.model, path)
        self.workers = Workers(self.policy, self.config.actor_rollout_ref, self.queue, ranks)
        self.reference = Workers(load_policy(config.model, path), self.config.actor_rollout_ref, self.queue, ranks)
        section: Any = resolved.plain() | {"output": str(folder)}
        self.run = ClusterRun.of(section, None)
        trainer: Any = object.__new__(MempoTrainer)
        trainer.__dict__.update(
            config=self.config,
            global_steps=2,  # the check of the probe is of the first step
            curr_step_profile=False,
            use_critic=False,
            use_reference_policy=bool(self.config.actor_rollout_ref.actor.use_kl_loss),
            ref_in_actor=False,
            tokenizer=AutoTokenizer.from_pretrained(path),
            actor_rollout_wg=self.workers,
            ref_policy_wg=self.reference,
            reward_loop_manager=SimpleNamespace(reward_loop_worker_handles=[]),
            checkpoint_manager=SimpleNamespace(sleep_replicas=lambda: None),
            replay_buffer=SimpleNamespace(sample=self._sample, chosen=()),
            _run=self.run,
            _groups=[],
            _minibatches=None,
            _measures={},
            _silence=(),
        )
        self.trainer: MempoTrainer = trainer

    def step(self, questions: Sequence[Question], reply: Reply) -> None:
        with self.queue.installed():
            asyncio.run(self._play(questions, reply))
            self.trainer._step_once(self.metrics, {}, len(questions))

    def _sample(self, **_: Any) -> tuple[KVBatchMeta, dict[str, float]]:
        tags = self.queue.tags["train"]
        self.trainer.replay_buffer.chosen = {key.partition("_")[0] for key in self.queue.tags["mempo"]}
        keys = sorted(tags, reverse=True)  # no order is promised
        if not keys:
            raise RuntimeError("verl cannot go on without rows")
        return KVBatchMeta(keys=keys, tags=[tags[key] for key in keys], partition_id="train"), {}

    async def _play(self, questions: Sequence[Question], reply: Reply) -> dict[str, bool]:
        """Whether each group, by its name, is whole: none of its rollouts failed."""
        whole: dict[str, bool] = {}
        uids = {f"uid{hash(question.id) % 1000}x{i}": question for i, question in enumerate(questions)}
        client = Client(self.policy, reply, {uid: question.id for uid, question in uids.items()})
        rollout = self.config.actor_rollout_ref.rollout
        sampling = {"temperature": rollout.temperature, "top_p": rollout.top_p, "top_k": rollout.top_k}
        worker = agent_loop_tq.AgentLoopWorkerTQ.__ray_metadata__.modified_class
        hands: Any = object.__new__(worker)
        hands.__dict__.update(processor=None, reward_loop_worker_handles=[], distillation_enabled=False)
        for index, (uid, question) in enumerate(uids.items()):
            whole[uid] = True
            for session in range(rollout.n):
                loop: Any = object.__new__(MempoAgentLoop)
                loop.config, loop.server_manager = self.config, client
                about = {"uid": uid, "session_id": session, "index": index, "global_steps": 2, "data_source": "q"}
                about["extra_info"] = {"question": question_json(question)}
                with mock.patch("mempo.cluster.agent_loop.run_of", return_value=self.run):
                    try:
                        outputs = await loop.run(dict(sampling), **about)
                        await hands._agent_loop_postprocess(outputs, False, **about)
                    except (UserError, RolloutFailed):  # verl logs what is raised, and goes on
                        whole[uid] = False
        return whole
