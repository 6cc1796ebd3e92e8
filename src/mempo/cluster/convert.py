"""`mempo cluster convert`: a checkpoint of verl's FSDP workers becomes a model folder that stands alone.

Safetensors are taken as they are, an adapter added to its weights. A checkpoint that has only shards goes through
verl's own merger, in a process of its own; shards are pickles, which can run code, so this has to be asked for.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from transformers import AutoConfig, AutoModelForCausalLM

from mempo.cluster.adapted_weights import INDEX, is_adapted, tensor_shapes, tied_names, write_merged
from mempo.cluster.verl_checkpoint import Checkpoint, check_shards, config_above, find_checkpoint, lora_scale
from mempo.cluster.versions import require_versions
from mempo.config import resolve
from mempo.errors import ConfigError, UserError
from mempo.progress import say
from mempo.storage.outputs import output_folder, refuse_others

KEPT = ("*.json", "*.txt", "*.model", "*.jinja")
"""Files of configuration and tokenizer. Code and pickles are left behind."""
_SHOWN_LINES = 3


def convert(path: Path, out: Path, config: Path | None, own_run: bool, console: Console, force: bool = False) -> Path:
    """Write the policy of a verl checkpoint to `out`, whole or not at all, with the run's configuration where there is
    one and `source.json`, which says where it came from.

    Raises:
        UserError: `out` holds something else (see `mempo.storage.outputs`); no checkpoint, or one that is not whole;
            only shards, and `own_run` is not said or verl is not installed.
    """
    checkpoint = find_checkpoint(path)
    made_by = f"mempo cluster convert {checkpoint.folder.resolve()}"
    refuse_others(out, "model", made_by, force)
    config = _config_of(checkpoint, config, console)
    with tempfile.TemporaryDirectory() as work, output_folder(out, "model", made_by, force) as target:
        if checkpoint.has_safetensors:
            source, adapter, how = checkpoint.huggingface, None, "safetensors"
            description = checkpoint.folder / "lora_train_meta.json"
        else:
            source, how = _merged_by_verl(checkpoint, Path(work), own_run, console), "verl.model_merger"
            adapter = source / "lora_adapter" if (source / "lora_adapter").is_dir() else None
            description = source / "lora_adapter" / "adapter_config.json"
        lora = write_model(source, adapter, description, target)
        if config is not None:
            shutil.copyfile(config, target / "config.yaml")
        origin = {"checkpoint": str(checkpoint.folder.resolve()), "step": checkpoint.step, "read": how, "lora": lora}
        (target / "source.json").write_text(json.dumps(origin, indent=1) + "\n", encoding="utf-8")
    step = "" if checkpoint.step is None else f" of step {checkpoint.step}"
    merged = "" if lora is None else f", its adapter of rank {lora['r']} added to the weights"
    say(console, f"the policy{step} is in {out}{merged}")
    say(console, f"mempo eval {out}{'' if config else ' --config YOUR.yaml'}")
    return out


def write_model(source: Path, adapter: Path | None, description: Path, target: Path) -> dict[str, Any] | None:
    """Copy a model folder, an adapter added to the weights; what is known of the adapter, None without one.

    Raises:
        UserError: weights that are missing, broken, or of another shape than the configuration says.
    """
    for pattern in KEPT:
        for file in source.glob(pattern):
            if file.name != INDEX:
                shutil.copyfile(file, target / file.name)
    files = sorted(source.glob("*.safetensors"))
    extra = sorted(adapter.glob("*.safetensors")) if adapter else []
    model = _empty_model(target)
    tied = tied_names(model) if getattr(model.config, "tie_word_embeddings", False) else set()
    lora = None
    if extra or is_adapted(tensor_shapes(files)):
        rank, scale = lora_scale(description)
        write_merged(files, extra, rank, scale, target, leave_out=tied)
        lora = {"r": rank, "lora_alpha": rank * scale}
    else:
        for file in (*files, *source.glob(INDEX)):
            shutil.copyfile(file, target / file.name)
    _check_whole(model, tied, tensor_shapes(target.glob("*.safetensors")), source)
    return lora


def _empty_model(folder: Path) -> Any:
    """The model of a configuration without memory for its weights."""
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise UserError(
            f"the configuration of {folder.name} is not that of a language model: {str(error).splitlines()[0]}"
        ) from error


def _check_whole(model: Any, tied: set[str], found: Mapping[str, tuple[int, ...]], source: Path) -> None:
    """A save that was cut short leaves weights out; loading would make them up, with a warning at most."""
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    missing = [name for name in wanted if name not in found and name not in tied]
    if missing:
        raise UserError(
            f"{source} lacks {len(missing)} of {len(wanted)} weights, the first is {missing[0]}: it was not saved "
            "whole, or holds an adapter alone; take another step"
        )
    other = [name for name, shape in wanted.items() if found.get(name, shape) != shape]
    if other:
        raise UserError(
            f"{source}: {other[0]} is {list(found[other[0]])}, but the configuration says {list(wanted[other[0]])}"
        )


def _merged_by_verl(checkpoint: Checkpoint, work: Path, own_run: bool, console: Console) -> Path:
    """A model folder made by verl's merger from shards; its weights are bfloat16."""
    shards = check_shards(checkpoint)
    if not own_run:
        raise UserError(
            f"{checkpoint.folder} holds no safetensors, only {shards} shards, which are pickles and can run code when "
            "they are loaded; if the checkpoint is of a run of your own, say --own-run (with hf_model among verl's "
            "save_contents there are safetensors too)"
        )
    require_versions()
    say(console, f"loading {shards} shards, which are pickles, as those of a run of your own")
    target = work / "merged"
    command = [sys.executable, "-m", "verl.model_merger", "merge", "--backend", "fsdp"]
    command += ["--local_dir", str(checkpoint.folder), "--target_dir", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode:
        told = " / ".join(line.strip() for line in done.stderr.strip().splitlines()[-_SHOWN_LINES:])
        raise UserError(f"verl's merger ended with exit code {done.returncode}: {told or 'no message'}")
    return target


def _config_of(checkpoint: Checkpoint, given: Path | None, console: Console) -> Path | None:
    """The configuration to put beside the policy; one that lies above it must be ours."""
    if given is not None:
        resolve(str(given))
        if not given.is_file():
            raise UserError(f"--config {given} is not a file")
        return given
    found = config_above(checkpoint)
    if found is not None:
        try:
            resolve(str(found))
        except ConfigError as error:
            say(console, f"{found} is left out: {error}")
            return None
    return found
