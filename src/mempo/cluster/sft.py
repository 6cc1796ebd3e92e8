"""`mempo cluster sft-data`: demonstrations of the expert for verl's SFT trainer.

train.parquet           token-exact rows, what `mempo sft` would train on
verl-sft.yaml           a configuration of verl's SFT trainer for them
demonstrations.jsonl    the same episodes as chat messages, for other tools; rendered anew they are other ids
config.yaml             ours, which a policy converted from the trainer's checkpoints takes along
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from mempo.cluster.sft_rows_file import write_rows
from mempo.cluster.verl_learning import model_section, precision
from mempo.config import Config
from mempo.engine.model import load_tokenizer
from mempo.errors import UserError
from mempo.progress import say
from mempo.rollout.protocol import closing, opening
from mempo.rollout.tokenizer import Tokenizer
from mempo.rollout.trajectory import Row, Turn
from mempo.setup import load_data, make_agent, make_tools
from mempo.storage.outputs import output_folder, refuse_others
from mempo.train.batch import take
from mempo.train.demonstrations import demonstrations
from mempo.train.expert_rollouts import Demo

ROWS, CHAT, SETTINGS = "train.parquet", "demonstrations.jsonl", "verl-sft.yaml"
SAVED = ["model", "optimizer", "extra", "hf_model"]
"""hf_model: safetensors, so that a checkpoint is converted without unpickling."""


def write_sft_data(config: Config, out: Path, console: Console, force: bool = False) -> Path:
    """Let the expert play the training questions and write all files into `out`, whole or not at all.

    Raises:
        UserError: `out` holds something else (see `mempo.storage.outputs`), no model is named whose tokenizer the rows
            could use, settings that verl's SFT trainer has no like of, fewer rows than a batch.
    """
    mark = hashlib.sha256(config.model_dump_json().encode("utf-8", "surrogatepass")).hexdigest()[:8]
    made_by = f"mempo cluster sft-data with settings {mark}"
    refuse_others(out, "sft-data", made_by, force)
    if not config.model.path:
        raise UserError("rows are ids of a tokenizer, and no model is named; set model.path (and toy=null)")
    _check_optimizer(config)
    if config.sft.lossy_steps is not None:
        raise UserError(
            "sft.lossy_steps shows complete notes first and forgetful ones later, but verl shuffles the rows of a "
            "file; set sft.lossy_steps=null"
        )
    tokenizer = load_tokenizer(config.model.path)
    with tempfile.TemporaryDirectory() as work:
        data = load_data(config, Path(work))
        agent = make_agent(config, tokenizer, make_tools(config, data.retriever), data.environment)
        found = demonstrations(config, data, agent, console)
    rows = mixed_rows(found.rows, found.probes, config)
    if len(rows) < config.sft.batch_rows:
        raise UserError(
            f"{len(rows)} rows are fewer than a batch of sft.batch_rows {config.sft.batch_rows}; raise sft.demos "
            f"({config.sft.demos}), or set sft.batch_rows={len(rows)}"
        )
    with output_folder(out, "sft-data", made_by, force) as folder:
        write_rows(folder / ROWS, rows, tokenizer.hf)
        _write_lines(folder / CHAT, [conversation(demo, config.prompt.system, tokenizer) for demo in found.demos])
        settings = verl_settings(config, out.resolve(), rows)
        text = yaml.safe_dump(settings, sort_keys=False)
        (folder / SETTINGS).write_text(f"# Made by mempo cluster sft-data.\n{text}", encoding="utf-8")
        ours = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
        (folder / "config.yaml").write_text(ours, encoding="utf-8")
    tokens = sum(len(row.ids) for row in rows)
    learnt = sum(row.generated_tokens for row in rows)
    for line in (
        f"{out / ROWS}: {len(rows)} token-exact rows, {tokens} tokens, {learnt} of them learnt",
        f"{out / CHAT}: {len(found.demos)} episodes as chat messages",
        f"start it, GPUS a divisor of {config.sft.batch_rows}:",
        f"  {command_line(out)}",
    ):
        say(console, line)
    return out


def mixed_rows(rows: Sequence[Row], probes: Sequence[Row], config: Config) -> list[Row]:
    """Every demonstration row once, and as many probe rows as make `sft.probe_share` of the whole."""
    share = config.sft.probe_share
    count = round(share / (1 - share) * len(rows)) if probes else 0
    return [*rows, *take(probes, 0, count, f"{config.seed} probes")]


def command_line(out: Path) -> str:
    return (
        "torchrun --standalone --nproc_per_node GPUS -m verl.trainer.sft_trainer "
        f"--config-path {out.resolve()} --config-name {SETTINGS.removesuffix('.yaml')}"
    )


# --- verl's settings -----------------------------------------------------------------------------------------------


def _check_optimizer(config: Config) -> None:
    optim = config.sft.optim
    if optim.kind != "adamw":
        raise UserError(f"verl's SFT trainer is set up with AdamW, and sft.optim.kind is {optim.kind}; set it to adamw")
    if optim.schedule not in ("constant", "cosine"):
        raise UserError(
            f"sft.optim.schedule is {optim.schedule}, but verl's SFT trainer has constant and cosine; set one of these"
        )


def verl_settings(config: Config, out: Path, rows: Sequence[Row]) -> dict[str, Any]:
    """A primary configuration on top of verl's own; `out` is the absolute folder that it will lie in."""
    sft, optim = config.sft, config.sft.optim
    longest = max(len(row.ids) for row in rows)
    steps_an_epoch = len(rows) // sft.batch_rows
    path = str(config.model.path)
    return {
        "hydra": {"searchpath": ["pkg://verl.trainer.config"]},
        "defaults": ["sft_trainer_engine", "_self_"],
        "data": {
            "train_files": str(out / ROWS),
            "custom_cls": {"path": "pkg://mempo.cluster.sft_dataset", "name": "TokenRows"},
            "pad_mode": "no_padding",
            "max_length": longest,
            "train_batch_size": sft.batch_rows,
            "use_dynamic_bsz": True,
            "max_token_len_per_gpu": max(longest, optim.micro_batch_tokens),
        },
        "model": model_section(config.model, str(Path(path).resolve()) if Path(path).exists() else path),
        "engine": {"strategy": "fsdp2", **precision(config.model)},
        "optim": {
            "lr": optim.lr,
            "betas": [optim.beta1, optim.beta2],
            "weight_decay": optim.weight_decay,
            # verl's warm-up begins with a rate of 0, one step behind ours, whose first of one is at the full rate.
            "lr_warmup_steps": optim.warmup_steps if optim.warmup_steps > 1 else 0,
            "lr_scheduler_type": optim.schedule,
            "min_lr_ratio": optim.min_lr_ratio,
            "clip_grad": optim.max_grad_norm,
        },
        "checkpoint": {"save_contents": SAVED},
        "trainer": {
            "default_local_dir": str(out / "checkpoints"),
            "project_name": "mempo",
            "experiment_name": out.name,
            "logger": ["console"],
            "seed": config.seed,
            "total_epochs": -(-sft.steps // steps_an_epoch) if sft.steps else 1,
            "total_training_steps": sft.steps or None,
            "save_freq": sft.save_every,
        },
    }


# --- chat messages -------------------------------------------------------------------------------------------------


def conversation(demo: Demo, system: str, tokenizer: Tokenizer) -> dict[str, Any]:
    """An episode as `messages`: own turns are the assistant's, the question and tool results the user's."""
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": demo.question.text})
    for turn in demo.trajectory.turns:
        messages.append({"role": "assistant", "content": tokenizer.decode(turn.own_ids)})
        if turn.observation is not None:
            messages.append({"role": "user", "content": _observed(turn, tokenizer)})
    return {"id": demo.question.id, "messages": messages, "answer": [list(one) for one in demo.question.objectives]}


def _observed(turn: Turn, tokenizer: Tokenizer) -> str:
    """The tool result in its tags, without the separators of turns around it."""
    assert turn.observation is not None
    text = tokenizer.decode(turn.observation.ids)
    start, stop = text.find(opening("tool_response")), text.rfind(closing("tool_response"))
    return text[start : stop + len(closing("tool_response"))]


def _write_lines(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
