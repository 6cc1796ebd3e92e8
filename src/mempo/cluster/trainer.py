# pyright: reportMissingImports=false
"""The trainer that verl knows as `mempo`: verl's synchronous trainer with our advantages and our mini-batches.

A step is verl's: sample, old log-probs, reference log-probs, advantages, update. Four places differ. Before rows are
dealt out, the whole rollouts are fetched (`_balance_batch`); scores and advantages are made as in the local loop
(`_compute_advantage`); an optimizer step is a set of questions, however many rows they have (`_update_actor`); and what
happened is kept in the run folder (`_step_once`, `_validate`) and sent to trackers (`fit`). Old checkpoints are removed
here (`_save_checkpoint`).

Underscored methods are overridden, so `versions.py` pins verl exactly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transfer_queue as tq
from omegaconf import DictConfig, open_dict
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.seqlen_balancing import get_seqlen_balanced_partitions, log_seqlen_unbalance

from mempo.cluster.agent_loop import response_start, run_of
from mempo.cluster.group_buffer import GroupBuffer
from mempo.cluster.minibatches import MiniBatches, deal_questions, row_order
from mempo.cluster.questions import TRAINER
from mempo.cluster.rollout_queue import take_rollouts
from mempo.cluster.rollouts import Group, RowKey, dealt
from mempo.cluster.scorer import ActorScorer
from mempo.cluster.verl_checkpoint import remove_old_checkpoints, resumable_step, tracked_step
from mempo.cluster.versions import require_versions
from mempo.config.cluster import ClusterSettings
from mempo.engine.update import TrainRow
from mempo.errors import UserError
from mempo.rewards.rollout_metrics import known
from mempo.run.trackers import tracked
from mempo.setup import load_data
from mempo.storage.rollouts import save_rollouts
from mempo.train.advantages import batch_advantages
from mempo.train.batch import advantages_by_turn, training_rows
from mempo.train.demonstrations import checked_probe
from mempo.train.fading import silence_logged
from mempo.train.score_batch import measure_rollouts, refuse_nothing_counted, score_batch


@register_trainer(TRAINER)
class MempoTrainer(PPOTrainerSync):
    def __init__(self, config: DictConfig) -> None:
        require_versions()
        with open_dict(config):
            # The base class knows a synchronous trainer by this word alone.
            config.trainer.v1.trainer_mode = "sync"
        super().__init__(config)
        self._run = run_of(config, _longest_row(config))
        self._groups: list[Group] = []
        self._minibatches: MiniBatches | None = None
        self._question_of_row: list[int] = []
        self._measures: dict[str, float] = {}
        self._silence: tuple[float, ...] = ()

    def _load_checkpoint(self) -> None:
        """Measures of steps that will be made again are forgotten. The launcher asked the same before, where it was."""
        resumable_step(self._run.folder, self._run.config)
        super()._load_checkpoint()
        if (self._run.folder.path / "metrics.jsonl").exists():
            self._run.folder.forget_after("rl", self.global_steps, ("rl",))
            self._run.folder.forget_after("validation", self.global_steps - 1, ("validation",))
        # verl's checkpoints have no room for it, and a step is logged before they are written.
        self._silence = silence_logged(
            self._run.folder.metrics(), self.global_steps, self._run.config.memory.fade_batches
        )

    def _save_checkpoint(self) -> None:
        """verl would remove old checkpoints before its tracker names the new one, and only those of its own process; so
        it is told to keep all. What the tracker names stays until it names another."""
        folder = Path(self.config.trainer.default_local_dir)
        keep = (self._run.config.cluster or ClusterSettings()).keep_checkpoints
        saved = tracked_step(folder, "remove it")
        if saved is not None:
            remove_old_checkpoints(folder, saved + 1, max(keep - 1, 1))
        super()._save_checkpoint()
        remove_old_checkpoints(folder, self.global_steps, keep - 1)

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        with tracked(self._run.folder, self._run.config.track):
            return super().fit(*args, **kwargs)

    # --- sampling ----------------------------------------------------------------------------------------------------

    def _build_replay_buffer(self) -> GroupBuffer:
        return GroupBuffer.like(super()._build_replay_buffer())

    def _step_once(self, metrics: dict, timing_raw: dict, sample_batch_size: int) -> KVBatchMeta:
        with self._cause_of_no_rows(self._run.config.rl.rollouts_per_question):
            batch = super()._step_once(metrics, timing_raw, sample_batch_size)
        updates = {f"update/{name}": metrics[f"actor/{name}"] for name in _UPDATE if f"actor/{name}" in metrics}
        self._run.folder.log("rl", self.global_steps, {**self._measures, **updates})
        return batch

    def _validate(self) -> dict[str, float]:
        """verl's measures by data source, and ours over all test questions (`val-mempo/…`), errors apart."""
        size = self.config.actor_rollout_ref.rollout.val_kwargs.n
        with self._cause_of_no_rows(size):
            found = super()._validate()
        questions, trajectories = dealt(self._arrived(size))
        measures = known(measure_rollouts(self._run.scoring, questions, trajectories))
        self._run.folder.log("validation", self.global_steps, measures)
        return {**found, **{f"val-mempo/{name}": value for name, value in measures.items()}}

    def _arrived(self, group_size: int) -> list[Group]:
        return take_rollouts(self._run.tokenizer, self._run.agent.grammar, group_size)

    @contextmanager
    def _cause_of_no_rows(self, group_size: int) -> Iterator[None]:
        """verl cannot go on without rows, and does not know why there are none: every rollout failed, an own score
        function did (which then fails here as well), or the agent workers themselves."""
        self._groups = []
        try:
            yield
        except Exception as error:
            questions, trajectories = dealt(self._groups or self._arrived(group_size))
            if not trajectories:
                raise UserError(
                    "no rollout reached the trainer: the errors of the agent workers stand above"
                ) from error
            refuse_nothing_counted(trajectories, self._run.scoring.outcomes(questions, trajectories))
            raise

    # --- mini-batches ------------------------------------------------------------------------------------------------

    def _balance_batch(self, batch: KVBatchMeta, metrics: dict, *args: Any, **kwargs: Any) -> KVBatchMeta:
        """Pad the batch (through `_get_required_batch_multiple`), then put every row where its mini-batch wants it."""
        arrived = self._arrived(self._run.config.rl.rollouts_per_question)
        arrived = [group for group in arrived if group.uid in self.replay_buffer.chosen]
        self._groups = arrived
        place = {group.uid: n for n, group in enumerate(arrived)}
        parsed = [RowKey.of(key) for key in batch.keys]
        batch.reorder(
            sorted(range(len(parsed)), key=lambda i: (place[parsed[i].uid], parsed[i].session, parsed[i].index))
        )
        real = list(batch.keys)
        self._question_of_row = [place[RowKey.of(key).uid] for key in real]
        batch = super()._balance_batch(batch, metrics, *args, **kwargs)
        minibatches, ranks = self._minibatches, self._ranks()
        assert minibatches is not None
        where = {key: i for i, key in enumerate(batch.keys)}
        lengths = [tag["seq_len"] for tag in batch.tags]
        padding = [i for key, i in where.items() if batch.tags[i].get("is_padding", False)]
        placed = minibatches.moved([where[key] for key in real])
        order = row_order(placed, lengths, padding, ranks, _balanced)
        batch.reorder(order)
        piece = len(order) // ranks
        shares = [list(range(rank * piece, (rank + 1) * piece)) for rank in range(ranks)]
        prefix = kwargs.get("logging_prefix", "global_seqlen")
        metrics.update(log_seqlen_unbalance([lengths[i] for i in order], shares, prefix=prefix))
        return batch

    def _get_required_batch_multiple(self, dp_size: int) -> int:
        actor = self.config.actor_rollout_ref.actor
        steps = self.config.data.train_batch_size // actor.ppo_mini_batch_size
        self._minibatches = deal_questions(self._question_of_row, len(self._groups), steps, dp_size)
        return self._minibatches.total_rows

    def _ranks(self) -> int:
        return max(self.actor_rollout_wg._dispatch_info["actor"]) + 1

    def _update_actor(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        minibatches = self._minibatches
        assert minibatches is not None
        workers = self.actor_rollout_wg
        update = workers.update_actor

        def update_by_questions(rows: KVBatchMeta) -> Any:
            sizes = {"global_batch_size": minibatches.rows, "mini_batch_size": minibatches.rows}
            rows.extra_info.update({**sizes, "dataloader_kwargs": {"shuffle": False}})
            return update(rows)

        workers.update_actor = update_by_questions
        try:
            return super()._update_actor(batch, metrics)
        finally:
            workers.update_actor = update

    # --- advantages --------------------------------------------------------------------------------------------------

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        """verl's own advantages are made first, for what comes with them, and then replaced."""
        batch = super()._compute_advantage(batch, metrics)
        questions, trajectories = dealt(self._groups)
        scorer = self._scorer()
        self._check_probe(scorer)
        config, scoring = self._run.config, self._run.scoring
        scored = score_batch(scoring, questions, trajectories, scorer, self._reference_scorer())
        counted = scored.counted(config.rl.rollouts_per_question, self.global_steps)
        advantages = batch_advantages(
            counted, scoring.advantages, scoring.memory, scoring.own_advantages, self._silence
        )
        self._silence = advantages.silence
        rows = training_rows(counted, advantages)
        self._write_advantages(batch, rows)
        self._measures = known({**scored.metrics, **advantages.metrics})
        metrics.update({f"mempo/{name}": value for name, value in self._measures.items()})
        if config.rl.log_rollouts_every and self.global_steps % config.rl.log_rollouts_every == 0:
            file = self._run.folder.rollouts(self.global_steps)
            facts = scored.records_with(counted, advantages)
            save_rollouts(file, trajectories, facts, advantages_by_turn(rows, len(trajectories)))
        return batch

    def _write_advantages(self, batch: KVBatchMeta, rows: Sequence[TrainRow]) -> None:
        """Into the queue, by verl's keys. Padding has none. Nor has a rollout that no longer counts: an own score is
        asked for in the agent's worker and here again, and its judge may fail the second time."""
        sessions = [(group.uid, n) for group in self._groups for n in range(len(group.trajectories))]
        made: dict[tuple[str, int], list[TrainRow]] = defaultdict(list)
        for row in rows:
            made[sessions[row.row.trajectory]].append(row)
        values = []
        for name, tag in zip(batch.keys, batch.tags, strict=True):
            key = None if tag.get("is_padding", False) else RowKey.of(name)
            if key is None or (key.uid, key.session) not in made:
                values.append(torch.zeros(tag["response_len"]))
                continue
            row = made[key.uid, key.session][key.index]
            values.append(torch.tensor(row.advantages[response_start(row.row) :]))
        advantages = torch.nested.as_nested_tensor(values, layout=torch.jagged)
        fields = TensorDict({"advantages": advantages, "returns": advantages}, batch_size=len(batch))
        tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)

    def _scorer(self) -> ActorScorer:
        return ActorScorer(self.actor_rollout_wg.compute_log_prob, self._ranks())

    def _reference_scorer(self) -> ActorScorer | None:
        if self._run.config.memory.full_policy != "reference" or not self.use_reference_policy:
            return None
        if self.ref_in_actor:
            compute = self.actor_rollout_wg.compute_log_prob
            return ActorScorer(compute, self._ranks(), without_adapter=True)
        return ActorScorer(self.ref_policy_wg.compute_ref_log_prob, self._ranks())

    def _check_probe(self, scorer: ActorScorer) -> None:
        config, folder = self._run.config, self._run.folder
        if not (self.global_steps == 1 and config.rl.memory_signal and config.rl.probe_check_questions):
            return
        data = load_data(config, folder.path / "data")
        print(checked_probe(config, data, self._run.agent, scorer, folder.path).report)


_UPDATE = ("loss", "grad_norm", "lr", "pg_loss", "kl_loss", "pg_clipfrac", "ppo_kl", "entropy")


def _balanced(lengths: Any, ranks: int) -> Any:
    return get_seqlen_balanced_partitions(list(lengths), k_partitions=ranks, equal_size=True)


def _longest_row(config: DictConfig) -> int:
    """The longest row that the workers take."""
    rollout, actor = config.actor_rollout_ref.rollout, config.actor_rollout_ref.actor
    return int(rollout.log_prob_max_token_len_per_gpu) * int(actor.get("ulysses_sequence_parallel_size", 1))
