"""A run that begins RL where another run's SFT ended: `start: RUN`."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mempo.config import Config, Resolved, completed, resolve
from mempo.config.unused import ADVANTAGE_KEYS
from mempo.engine.model import load_tokenizer
from mempo.envs.data import Data
from mempo.errors import ConfigError
from mempo.rollout.interfaces import Tool
from mempo.rollout.tokenizer import Tokenizer
from mempo.storage.files import write_atomic
from mempo.storage.read_files import PUT_BACK, RECORD, read_json, read_yaml
from mempo.storage.run_folder import RunFolder, changed_keys, without
from mempo.train.demonstrations import tokenizer_of_toy

EVALUATION = "evaluation-start"
_BESIDE_EVALUATION = (
    *("output", "start", "toy", "sft", "rl", "advantages", "track"),
    *("data.objectives", "data.train", "data.train_questions"),
    *(f"memory.{name}" for name in (*ADVANTAGE_KEYS, "preset", "lost_notes")),
)
"""Settings that the evaluation of a start does not depend on; that its questions are the same is checked by content."""


def start_model(path: str) -> str:
    """The model folder that `start` names: of a run folder the policy that its SFT ended with, anything else as it is.

    Raises:
        ConfigError: the run has not come to the end of its SFT, or has none.
    """
    run = Path(path)
    if not (run / "config.yaml").is_file() or (run / "config.json").is_file():
        return path
    if (run / "start").is_dir():  # kept by a run whose RL needs it later
        return str(run / "start")
    config = resolve(path).config
    done = [checkpoint for checkpoint in RunFolder(run).checkpoints() if checkpoint.stage == "sft"]
    if done and done[-1].step >= config.sft.steps:
        return str(done[-1].path)
    if done:
        raise ConfigError(
            f"start: the SFT of {path} is at step {done[-1].step} of {config.sft.steps}; let it end (mempo train "
            f"{path} --resume), or name the checkpoint, start={done[-1].path}"
        )
    if not config.rl.steps and (run / "final").is_dir():
        return str(run / "final")
    if config.start:
        return start_model(config.start)
    raise ConfigError(f"start: {path} holds no policy at the end of SFT; name a model folder, such as {path}/final")


def refuse_other_vocabulary(config: Config, data: Data, tokenizer: Tokenizer, tools: Mapping[str, Tool]) -> None:
    """The run goes on with the start's own tokenizer, so this must have every token that the configuration counts on.

    Raises:
        ConfigError: tokens are missing; how many, and one of them.
    """
    if config.toy is not None:
        wanted, of = tokenizer_of_toy(config, data, tools), "this configuration's environment and settings"
    elif config.model.path:
        wanted, of = load_tokenizer(config.model.path), f"model.path {config.model.path}"
    else:
        return
    known = tokenizer.hf.get_vocab()
    missing = [number for token, number in wanted.hf.get_vocab().items() if token not in known]
    if missing:
        raise ConfigError(
            f"start {config.start} has another vocabulary: {len(missing)} tokens of {of} are not in it, such as "
            f"{wanted.decode([missing[0]])!r}; use the settings that the start was trained with, or another start"
        )


def borrow_evaluation(resolved: Resolved, fingerprints: Mapping[str, str], folder: Path) -> bool:
    """Copy the evaluation of the start from the run that the start comes from into the run folder `folder`, where that
    is the same evaluation: same policy, questions, corpus and settings. False: it has to be made."""
    config = resolved.config
    if not config.start or not (Path(config.start) / "config.yaml").is_file():
        return False
    source = Path(config.start)
    file, data = source / f"{EVALUATION}.json", source / "data.json"
    if not file.is_file() or not data.is_file():
        return False
    old = completed(read_yaml(source / "config.yaml", PUT_BACK))
    if changed_keys(without(old, _BESIDE_EVALUATION), without(resolved.plain(), _BESIDE_EVALUATION)):
        return False
    if _evaluated_on(read_json(data, RECORD, PUT_BACK)) != _evaluated_on(fingerprints):
        return False
    (folder / "rollouts").mkdir(parents=True, exist_ok=True)
    for rollouts in (source / "rollouts").glob(f"{EVALUATION}.*"):
        shutil.copyfile(rollouts, folder / "rollouts" / rollouts.name)
    write_atomic(folder / file.name, file.read_bytes())  # last: it says that all of it is here
    return True


def _evaluated_on(fingerprints: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fingerprints.items() if name != "training questions"}
