# pyright: reportMissingImports=false
"""Which groups a step is made of: verl's own buffer, fixed in one place. Only `trainer` imports it, after verl."""

from __future__ import annotations

from typing import Any

from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer


class GroupBuffer(ReplayBuffer):
    """verl's own buffer, which remembers whose rows a batch was made of, and goes on when a group has none.

    Where groups of equal scores are replaced (`algorithm.filter_groups`), verl ends the run at a group whose rollouts
    all ended before their first turn: it is finished and has no row to read a score from. Such a group stays: it has
    its place in the batch, and is counted.
    """

    chosen: frozenset[str] = frozenset()
    """The groups of the last batch; others were played and not chosen."""

    @classmethod
    def like(cls, made: ReplayBuffer) -> GroupBuffer:
        buffer = object.__new__(cls)
        buffer.__dict__.update(made.__dict__)
        return buffer

    def _dapo_filtered_keys(self, partition_id: str) -> tuple[set[str], Any]:
        finished = self.finished_keys[partition_id]
        self.finished_keys[partition_id] = finished & {key.split("_")[0] for key in self.partitions[partition_id]}
        try:
            return super()._dapo_filtered_keys(partition_id)
        finally:
            self.finished_keys[partition_id] = finished

    def _materialize_batch(
        self, partition_id: str, selected_prompt_uids: list[str], partition_snapshot: dict[str, dict]
    ) -> KVBatchMeta:
        self.chosen = frozenset(selected_prompt_uids)
        return super()._materialize_batch(partition_id, selected_prompt_uids, partition_snapshot)
