"""One of our configurations as verl's: a Hydra file that holds the keys we set, over verl's own defaults.

The whole of ours travels along as the section `mempo`, which agent loop and trainer read in every process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mempo.cluster.constraints import agent_workers, check_divides, queued_rows, server_window_tokens
from mempo.cluster.model_shape import model_shape
from mempo.cluster.questions import AGENT, TRAINER
from mempo.cluster.verl_keys import check_keys
from mempo.cluster.verl_learning import actor_section, check_learning, compute_dtype, model_section, precision
from mempo.config import Config
from mempo.config.cluster import ClusterSettings
from mempo.errors import ConfigError

CONFIG_NAME = "verl"
"""Of the file, without `.yaml`."""

_QUEUED_ROWS = 100_000
"""What verl's transfer queue holds by default."""
_PATHS = (("model", "path"), ("data", "train"), ("data", "test"), ("data", "corpus"), ("data", "index"))


def verl_config(
    config: Config,
    plain: Mapping[str, Any],
    folder: Path,
    *,
    address: str | None = None,
    tested: bool | None = None,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """verl's configuration as nested plain data.

    Args:
        plain: the same configuration as plain data (`Resolved.plain()`).
        folder: the run folder; paths in it are made absolute.
        address: of a Ray cluster that runs already; None starts one on this machine.
        tested: whether there are test questions; None: as far as the configuration tells.
        environment: variables that every process of the run gets.

    Raises:
        ConfigError: what verl has no equal of, what does not divide.
    """
    check_for_cluster(config)
    check_learning(config)
    check_keys((config.cluster or ClusterSettings()).verl)
    check_divides(config, model_shape(config.model.path))
    settings, folder = config.cluster or ClusterSettings(), folder.absolute()
    tested = bool(config.data.test or config.data.environment) if tested is None else tested
    path = _lasting(config.model.path or "")
    made: dict[str, Any] = {
        "hydra": {
            "searchpath": ["pkg://verl.trainer.config"],
            "run": {"dir": str(folder / "hydra")},
            "output_subdir": None,
        },
        "defaults": ["ppo_trainer", "_self_"],
        "data": _data(config, folder, tested),
        "actor_rollout_ref": {
            "model": model_section(config.model, path),
            "actor": actor_section(config, settings),
            "ref": {
                "fsdp_config": precision(config.model),
                "log_prob_max_token_len_per_gpu": settings.score_batch_tokens or settings.micro_batch_tokens,
            },
            "rollout": _rollout(config, settings),
        },
        "algorithm": {
            "adv_estimator": "grpo",
            "use_kl_in_reward": False,
            "rollout_correction": {"bypass_mode": not settings.recompute_logprobs},
        },
        "reward": {"num_workers": 1},  # the agent loop gives the reward, so there is nothing for them to do
        "trainer": _trainer(config, settings, folder, tested),
        "transfer_queue": {
            "backend": {"SimpleStorage": {"total_storage_size": max(_QUEUED_ROWS, queued_rows(config))}}
        },
        "ray_kwargs": _ray(address, environment or {}),
        "mempo": _mempo_section(plain, folder),
    }
    for key, value in settings.verl.items():
        put(made, key, value)
    return made


def check_for_cluster(config: Config) -> None:
    """Refuse parts of a configuration that only a run in this process knows.

    Raises:
        ConfigError: the part and the remedy.
    """
    data, nodes = config.data, (config.cluster or ClusterSettings()).nodes
    if config.toy is not None:
        raise ConfigError("verl loads model folders and makes no toy policy; set toy=null and model.path")
    if config.server is not None:
        raise ConfigError("a model behind a server cannot be trained; set server=null and model.path")
    if not config.model.path:
        raise ConfigError("there is no policy to train; set model.path")
    if config.sft.steps:
        raise ConfigError(
            f"sft.steps is {config.sft.steps}, but a cluster does reinforcement learning only; run mempo sft (or "
            "verl's SFT trainer) first, then set sft.steps=0 and model.path to what it made"
        )
    if config.sampler.engine != "local":
        raise ConfigError(
            f"sampler.engine {config.sampler.engine} is of runs in this process; set sampler.engine=local and choose "
            "the rollout server with cluster.engine"
        )
    local = next((name for name in ("index", "corpus") if getattr(data, name)), None)
    if local and nodes > 1:
        raise ConfigError(
            f"data.{local} is opened by every agent worker, and cluster.nodes is {nodes}; serve it once (mempo serve) "
            f"and set data.server instead, data.{local}=null"
        )


def _data(config: Config, folder: Path, tested: bool) -> dict[str, Any]:
    longest = config.limits.max_context_tokens
    train = str(folder / "data" / "train.parquet")
    section = {
        "train_files": train,
        # verl will have a validation file; without test questions it is never played.
        "val_files": str(folder / "data" / "test.parquet") if tested else train,
        "train_batch_size": config.rl.questions_per_step,
        "val_batch_size": None,
        # Either part of a row may be nearly all of it: a question with a long history, or a short one.
        "max_prompt_length": longest,
        "max_response_length": longest,
        "filter_overlong_prompts": False,
        "shuffle": True,
        "seed": config.seed,
        "validation_shuffle": False,
        "dataloader_num_workers": 0,
    }
    return section if tested else {**section, "val_max_samples": 1}


def _rollout(config: Config, settings: ClusterSettings) -> dict[str, Any]:
    evaluate = config.evaluate
    return {
        "name": settings.engine,
        "mode": "async",
        "n": config.rl.rollouts_per_question,
        "temperature": config.rl.temperature,
        "top_p": 1.0,
        "top_k": -1,
        "seed": config.seed,
        "calculate_log_probs": True,
        "skip_tokenizer_init": False,  # SGLang sees stop strings with its tokenizer alone
        "dtype": compute_dtype(config.model),
        "tensor_model_parallel_size": settings.tensor_parallel,
        "gpu_memory_utilization": settings.gpu_memory_fraction,
        "max_model_len": server_window_tokens(config, settings),
        # Adapters are sent alone: the server must have read the weights below them itself.
        "load_format": "safetensors" if config.model.lora else "dummy",
        "log_prob_max_token_len_per_gpu": settings.score_batch_tokens or settings.micro_batch_tokens,
        "val_kwargs": {
            "temperature": evaluate.temperature,
            "top_p": evaluate.top_p,
            "top_k": evaluate.top_k or -1,
            "n": evaluate.rollouts_per_question,
            "do_sample": evaluate.temperature > 0,
        },
        "agent": {"num_workers": agent_workers(config, settings), "default_agent_loop": AGENT},
    }


def _trainer(config: Config, settings: ClusterSettings, folder: Path, tested: bool) -> dict[str, Any]:
    tests = tested and settings.test_every > 0
    return {
        "use_v1": True,
        "v1": {"trainer_mode": TRAINER},
        "nnodes": settings.nodes,
        "n_gpus_per_node": settings.gpus_per_node,
        "total_training_steps": config.rl.steps,
        "total_epochs": config.rl.steps,  # never fewer than needed: a pass over the questions has at least one step
        "save_freq": config.rl.save_every,
        "test_freq": settings.test_every if tests else -1,
        "val_before_train": tests,
        "max_actor_ckpt_to_keep": None,  # the plug-in's trainer removes old ones (cluster.keep_checkpoints)
        "default_local_dir": str(folder / "checkpoints"),
        "resume_mode": "auto",
        "project_name": settings.project,
        "experiment_name": folder.name,
        "logger": list(settings.loggers),
    }


def _ray(address: str | None, environment: Mapping[str, str]) -> dict[str, Any]:
    started: dict[str, Any] = {} if address is None else {"address": address}
    if environment:
        started["runtime_env"] = {"env_vars": dict(environment)}
    return {"ray_init": started}


def _mempo_section(plain: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Ours, with paths that mean the same in every process."""
    section = {key: dict(value) if isinstance(value, Mapping) else value for key, value in plain.items()}
    section["output"] = str(folder)
    for room, name in _PATHS:
        if section.get(room, {}).get(name):
            section[room][name] = _lasting(section[room][name])
    for key, text in _texts(section, "mempo"):
        if "${" in text or text == "???":
            raise ConfigError(f"{key} holds {text!r}, which verl's configuration files would take for a reference")
    return section


def _lasting(path: str) -> str:
    """A path that means the same from anywhere; a hub name stays."""
    return str(Path(path).absolute()) if path.startswith((".", "/")) or Path(path).exists() else path


def _texts(value: Any, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _texts(inner, f"{key}.{name}")
    elif isinstance(value, list | tuple):
        for n, inner in enumerate(value):
            yield from _texts(inner, f"{key}.{n}")


def put(made: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key of verl's."""
    *rooms, name = key.split(".")
    for room in rooms:
        inner = made.get(room)
        made[room] = inner if isinstance(inner, dict) else {}
        made = made[room]
    made[name] = value
