# pyright: reportMissingImports=false
"""Whole rollouts in verl's transfer queue, from the processes that play them to the trainer.

They have a partition of their own and are no columns of the batch: those are shipped to the actor's update, which has
no use for them.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
import transfer_queue as tq

from mempo.cluster.questions import question_of
from mempo.cluster.rollouts import Group, decode_rollout, encode_rollout, whole_group
from mempo.rollout.protocol import TurnGrammar
from mempo.rollout.tokenizer import Tokenizer
from mempo.rollout.trajectory import Trajectory

PARTITION = "mempo"


async def send_rollout(uid: str, session: int, index: int, question: str, trajectory: Trajectory) -> None:
    """`question`: as `question_json` wrote it. `index`: its place in the data, by which groups are put in order."""
    await tq.async_kv_put(
        key=f"{uid}_{session}",
        partition_id=PARTITION,
        fields={"rollout": _tensor(encode_rollout(trajectory)), "question": _tensor(question.encode("utf-8"))},
        tag={"index": index},
    )


def take_rollouts(tokenizer: Tokenizer, grammar: TurnGrammar, group_size: int) -> list[Group]:
    """All rollouts that wait, in the order of the data; the queue is empty afterwards."""
    tags = tq.kv_list(PARTITION).get(PARTITION, {})
    if not tags:
        return []
    keys = sorted(tags, key=lambda key: (tags[key]["index"], key))
    data = tq.kv_batch_get(keys=keys, partition_id=PARTITION, select_fields=["rollout", "question"])
    tq.kv_clear(keys=keys, partition_id=PARTITION)
    questions, arrived = {}, defaultdict(dict)
    for key, rollout, question in zip(keys, _rows(data["rollout"]), _rows(data["question"]), strict=True):
        uid, session = key.rsplit("_", 1)
        questions[uid] = question_of(question.decode("utf-8"))
        arrived[uid][int(session)] = decode_rollout(rollout, tokenizer, grammar)
    return [whole_group(uid, question, arrived[uid], group_size) for uid, question in questions.items()]


def _tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _rows(column: Any) -> list[bytes]:
    return [row.numpy().tobytes() for row in column.unbind()]
