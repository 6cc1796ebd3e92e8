# pyright: reportMissingImports=false
"""One rank of a run that saves a checkpoint with verl's own manager: FSDP2 over gloo.

save_checkpoint.py RANK RANKS MODEL OUT RENDEZVOUS CONTENTS LORA_RANK
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from omegaconf import OmegaConf
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM, AutoTokenizer
from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager


def main(rank: int, ranks: int, path: str, out: Path, rendezvous: str, contents: list[str], lora_rank: int) -> None:
    torch.distributed.init_process_group("gloo", f"file://{rendezvous}", rank=rank, world_size=ranks)
    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    if lora_rank:
        from peft import LoraConfig, get_peft_model

        lora = LoraConfig(r=lora_rank, lora_alpha=2 * lora_rank, target_modules="all-linear", task_type="CAUSAL_LM")
        torch.manual_seed(0)  # the same on every rank
        model = get_peft_model(model, lora)
        generator = torch.Generator().manual_seed(1)
        for name, parameter in model.named_parameters():
            if ".lora_B." in name:
                parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator)
        ids = torch.tensor([[5, 6, 7, 8, 9, 10]])
        if rank == 0:
            out.mkdir(parents=True, exist_ok=True)
            torch.save(model(input_ids=ids).logits.detach(), out / "logits.pt")
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("fsdp",))
    for layer in model.get_decoder().layers if not lora_rank else model.get_base_model().model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    manager = FSDPCheckpointManager(
        model=model,
        processing_class=AutoTokenizer.from_pretrained(path),
        checkpoint_config=OmegaConf.create({"save_contents": contents, "load_contents": contents}),
    )
    manager.save_checkpoint(str(out / "actor"), global_step=3)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    rank, ranks, model, out, rendezvous, contents, lora_rank = sys.argv[1:]
    main(int(rank), int(ranks), model, Path(out), rendezvous, contents.split(","), int(lora_rank))
