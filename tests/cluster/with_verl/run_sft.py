# pyright: reportMissingImports=false
"""One rank of verl's SFT trainer on `cpu_node.py`; started by torchrun with the arguments of the trainer."""

from __future__ import annotations

import os
import runpy
from datetime import timedelta

os.environ["MEMPO_CPU_NODE"] = "1"

import torch
import verl.utils.distributed

import tests.cluster.with_verl.cpu_node  # noqa: F401


def begin(timeout_second: int = 600) -> tuple[int, int, int]:
    torch.distributed.init_process_group("cpu:gloo", timeout=timedelta(seconds=timeout_second))
    return int(os.environ["LOCAL_RANK"]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


if __name__ == "__main__":
    verl.utils.distributed.initialize_global_process_group = begin
    runpy.run_module("verl.trainer.sft_trainer", run_name="__main__")
