"""Where verl puts a checkpoint, and what of it can be read without unpickling anything.

CHECKPOINTS/latest_checkpointed_iteration.txt      the number of the last step that was saved whole
CHECKPOINTS/global_step_N/actor/                   the RL trainer's; the SFT trainer leaves `actor` out
    model_world_size_W_rank_R.pt                   shards: pickles
    fsdp_config.json                               {"world_size": W}
    huggingface/                                   configuration and tokenizer, with `hf_model` also *.safetensors
    lora_train_meta.json                           {"r", "lora_alpha"} of an adapter
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mempo.errors import UserError

LATEST = "latest_checkpointed_iteration.txt"
_STEP = re.compile(r"global_step_(\d+)")
_LEVELS_UP = 5
"""A run folder lies at most so far above what is converted: RUN/checkpoints/global_step_N/actor and one to spare."""


@dataclass(frozen=True)
class Checkpoint:
    """One saved policy. `folder` holds the shards and `huggingface/`; `step` is None where no folder name tells it."""

    folder: Path
    step: int | None

    @property
    def huggingface(self) -> Path:
        return self.folder / "huggingface"

    @property
    def has_safetensors(self) -> bool:
        return any(self.huggingface.glob("*.safetensors"))


def find_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint that a path means: `global_step_N`, its `actor` folder, or the folder of all steps (the last one).

    Raises:
        UserError: nothing of that kind is there.
    """
    if not path.is_dir():
        raise UserError(f"there is no checkpoint folder {path}")
    latest = path / LATEST
    if latest.is_file():
        text = latest.read_text("utf-8", errors="replace").strip()
        if not (text.isascii() and text.isdigit()):
            raise UserError(f"{latest} holds {text[:40]!r}, which is no step; name a global_step_N folder")
        step = path / f"global_step_{text}"
        if not step.is_dir():
            raise UserError(f"{latest} names step {text}, but {step} is not there; name another global_step_N folder")
        path = step
    for folder in (path, path / "actor"):
        if (folder / "huggingface" / "config.json").is_file():
            return Checkpoint(folder, _step_of(folder))
    steps = sorted(int(found.group(1)) for entry in path.iterdir() if (found := _STEP.fullmatch(entry.name)))
    if steps:
        raise UserError(
            f"{path} has no {LATEST}, so no step is known to be whole; name one, such as {path}/global_step_{steps[-1]}"
        )
    raise UserError(
        f"{path} is no verl checkpoint: neither it nor its actor/ holds huggingface/config.json; name a global_step_N "
        "folder, or the folder above that has " + LATEST
    )


def _step_of(folder: Path) -> int | None:
    names = [folder.resolve().name, folder.resolve().parent.name]
    return next((int(found.group(1)) for name in names if (found := _STEP.fullmatch(name))), None)


def check_shards(checkpoint: Checkpoint) -> int:
    """The number of shards, all of which are there.

    Raises:
        UserError: the checkpoint does not say how many there are, or some are missing.
    """
    config = read_json(checkpoint.folder / "fsdp_config.json")
    world_size = (config or {}).get("world_size")
    if type(world_size) is not int or world_size < 1:
        raise UserError(
            f"{checkpoint.folder} has neither safetensors in huggingface/ nor an fsdp_config.json that tells the "
            "number of shards; only checkpoints of verl's FSDP workers can be converted"
        )
    missing = [rank for rank in range(world_size) if not _shard(checkpoint, world_size, rank).is_file()]
    if missing:
        raise UserError(
            f"{checkpoint.folder} lacks {len(missing)} of {world_size} shards, the first is "
            f"{_shard(checkpoint, world_size, missing[0]).name}; bring the shards of all nodes into one folder"
        )
    return world_size


def _shard(checkpoint: Checkpoint, world_size: int, rank: int) -> Path:
    return checkpoint.folder / f"model_world_size_{world_size}_rank_{rank}.pt"


def lora_scale(file: Path) -> tuple[int, float]:
    """Rank and factor (alpha / rank) of an adapter, from verl's or peft's description of it.

    Raises:
        UserError: the file is missing or tells no alpha.
    """
    found = read_json(file)
    rank, alpha = ((found or {}).get(key) for key in ("r", "lora_alpha"))
    if not isinstance(rank, int) or not isinstance(alpha, int | float) or rank < 1 or alpha <= 0:
        told = "is not there" if found is None else f"says r {rank!r}, lora_alpha {alpha!r}"
        raise UserError(f"the checkpoint holds an adapter, but {file} {told}, so its weight is not known")
    return rank, alpha / rank


def read_json(file: Path) -> dict[str, Any] | None:
    """An object from a file; None where there is none."""
    try:
        found = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def config_above(checkpoint: Checkpoint) -> Path | None:
    """The `config.yaml` of the run folder that the checkpoint lies in."""
    folders = checkpoint.folder.resolve().parents
    return next((file for up in folders[:_LEVELS_UP] if (file := up / "config.yaml").is_file()), None)
