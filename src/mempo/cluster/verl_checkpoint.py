"""Where verl puts a checkpoint, and what of it can be read without unpickling anything.

CHECKPOINTS/latest_checkpointed_iteration.txt      the number of the last step that was saved whole
CHECKPOINTS/global_step_N/data.pt                  the place in the training questions
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

from mempo.config import Config
from mempo.config.cluster import ClusterSettings
from mempo.errors import UserError
from mempo.storage.atomic import remove_atomic
from mempo.storage.read_files import exists, read_bytes
from mempo.storage.run_folder import RunFolder

LATEST = "latest_checkpointed_iteration.txt"
_STEP = re.compile(r"global_step_([0-9]+)")
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
    number = tracked_step(path, "name a global_step_N folder")
    if number is not None:
        step = path / f"global_step_{number}"
        if not step.is_dir():
            raise UserError(
                f"{path / LATEST} names step {number}, but {step} is not there; name another global_step_N folder"
            )
        path = step
    for folder in (path, path / "actor"):
        if (folder / "huggingface" / "config.json").is_file():
            return Checkpoint(folder, _step_of(folder))
    steps = _step_folders(path)
    if steps:
        raise UserError(
            f"{path} has no {LATEST}, so no step is known to be whole; name one, such as "
            f"{path}/global_step_{max(steps)}"
        )
    raise UserError(
        f"{path} is not a verl checkpoint: neither it nor its actor/ holds huggingface/config.json; name a "
        "global_step_N folder, or the folder above that has " + LATEST
    )


def _step_of(folder: Path) -> int | None:
    names = [folder.resolve().name, folder.resolve().parent.name]
    return next((int(found.group(1)) for name in names if (found := _STEP.fullmatch(name))), None)


def tracked_step(checkpoints: Path, remedy: str) -> int | None:
    """The step that verl's tracker names; None where there is no tracker.

    Raises:
        UserError: a tracker that names none; `remedy` ends the message.
    """
    latest = checkpoints / LATEST
    if not exists(latest):
        return None
    text = read_bytes(latest, remedy).decode("utf-8", errors="replace").strip()
    if not (text.isascii() and text.isdigit()):
        raise UserError(f"{latest} holds {text[:40]!r}, which is not a step; {remedy}")
    return int(text)


def resumable_step(run: RunFolder, config: Config) -> int:
    """The step that verl goes on from, 0 where none was saved yet. verl itself begins at 0, without a word, when what
    its tracker names is gone.

    Raises:
        UserError: a step was saved, and what is needed to go on from it is missing.
    """
    ranks, first_save = (config.cluster or ClusterSettings()).gpus, min(config.rl.save_every, config.rl.steps)
    folder = run.path / "checkpoints"
    whole = [step for step, path in _step_folders(folder).items() if not _lacks(path, ranks)]
    remedy = "put it back, or begin another run with output=…"
    if whole:
        remedy = f"to continue from step {max(whole)}, which is complete, write {max(whole)} into {folder / LATEST}"
    step = tracked_step(folder, remedy)
    if step is not None:
        lacks = _lacks(folder / f"global_step_{step}", ranks)
        if lacks:
            raise UserError(
                f"--resume: {folder / LATEST} names step {step}, but {folder}/global_step_{step} lacks {len(lacks)} of "
                f"the files of {ranks} GPUs, the first is {lacks[0]}; {remedy}"
            )
        return step
    if whole:
        raise UserError(f"--resume: {folder} holds checkpoints, but no {LATEST} that names the last one; {remedy}")
    measured = max((line["step"] for line in run.metrics() if line["stage"] == "rl"), default=0)
    if measured > first_save:
        raise UserError(
            f"--resume: metrics.jsonl reaches step {measured}, and steps were saved from step {first_save} on, but "
            f"{folder} holds no checkpoint; {remedy}"
        )
    return 0


def remove_old_checkpoints(checkpoints: Path, before: int, keep: int) -> None:
    """Of the checkpoints of steps below `before` the newest `keep` stay. One that cannot be removed stays too, and a
    line says so: the run is worth more than the room."""
    older = sorted((step, path) for step, path in _step_folders(checkpoints).items() if step < before)
    for _, path in older[: max(len(older) - keep, 0)]:
        try:
            remove_atomic(path)
        except OSError as error:
            print(f"mempo: the old checkpoint {path} could not be removed ({error})")


def _step_folders(checkpoints: Path) -> dict[int, Path]:
    entries = checkpoints.iterdir() if checkpoints.is_dir() else ()
    return {int(found.group(1)): entry for entry in entries if (found := _STEP.fullmatch(entry.name))}


def _lacks(folder: Path, ranks: int) -> list[str]:
    """What a resumption reads and is missing or empty."""
    shards = [
        f"actor/{kind}_world_size_{ranks}_rank_{rank}.pt"
        for kind in ("model", "optim", "extra_state")
        for rank in range(ranks)
    ]
    files = {name: folder / name for name in ("data.pt", *shards)}
    return [name for name, file in files.items() if not (file.is_file() and file.stat().st_size)]


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
