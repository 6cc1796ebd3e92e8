# pyright: reportMissingImports=false
"""The file that a launch writes, read as verl reads it: every key is one of verl's, and every value arrives."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf
from verl.trainer.ppo.core_algos import kl_penalty
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import omega_conf_to_dataclass, validate_config
from verl.utils.torch_functional import get_constant_schedule_with_warmup, get_cosine_schedule_with_warmup

from mempo.cluster.machine import Machine
from mempo.cluster.plugin import TRAINER as REGISTERED
from mempo.cluster.verl_config import TRAINER, verl_config
from mempo.cluster.verl_learning import KL_TYPES
from mempo.config import Config, recipe_names, resolve
from mempo.config.base import leaves
from mempo.config.train import OptimSettings
from mempo.config.yaml_text import dump_yaml
from mempo.engine.loss import kl_estimate
from mempo.engine.optimizer import learning_rate

RECIPES = [name for name in recipe_names() if name.startswith("cluster-")]
ADDED = (
    *("hydra", "defaults", "mempo", "ray_kwargs.ray_init.address", "ray_kwargs.ray_init.runtime_env.env_vars"),
    *("actor_rollout_ref.model.override_config", "actor_rollout_ref.rollout.name"),
    *("actor_rollout_ref.actor.fsdp_config.mixed_precision", "actor_rollout_ref.ref.fsdp_config.mixed_precision"),
)
"""Keys that verl's own files give no value: ours, Hydra's, free ones, and fields of its dataclasses."""


def composed(tmp_path: Path, name: str, *overrides: str) -> tuple[dict[str, Any], DictConfig]:
    resolved = resolve(name, overrides)
    made = verl_config(
        resolved.config, resolved.plain(), tmp_path, address="10.0.0.1:6379", environment={"PYTHONPATH": "/own"}
    )
    (tmp_path / "verl.yaml").write_text(dump_yaml(made), encoding="utf-8")
    with initialize_config_dir(str(tmp_path), version_base=None):
        return made, compose("verl")


@pytest.mark.parametrize("name", RECIPES)
def test_every_value_arrives(name: str, tmp_path: Path) -> None:
    made, config = composed(tmp_path, name)
    received: Any = OmegaConf.to_container(config, resolve=True)
    arrived = dict(leaves(received))
    sent = {key: value for key, value in leaves(made) if not key.startswith(("hydra.", "defaults"))}
    assert {key: arrived.get(key) for key in sent} == sent
    assert Config.model_validate(received["mempo"]).rl == resolve(name).config.rl


@pytest.mark.parametrize("name", RECIPES)
def test_every_key_is_one_of_verls(name: str, tmp_path: Path) -> None:
    made, _ = composed(tmp_path, name)
    (tmp_path / "plain.yaml").write_text(
        "hydra: {searchpath: ['pkg://verl.trainer.config']}\ndefaults: [ppo_trainer, _self_]\n", encoding="utf-8"
    )
    with initialize_config_dir(str(tmp_path), version_base=None):
        plain = compose("plain")
    missing = object()
    unknown = [key for key, _ in leaves(made) if OmegaConf.select(plain, key, default=missing) is missing]
    assert [key for key in unknown if not key.startswith(ADDED)] == []


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_verl_accepts_it(name: str, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []  # of adapters verl asks vLLM, which is not here
    utils: Any = types.ModuleType("utils")
    utils.get_vllm_max_lora_rank = asked.append
    monkeypatch.setitem(sys.modules, "verl.workers.rollout.vllm_rollout", types.ModuleType("vllm_rollout"))
    monkeypatch.setitem(sys.modules, "verl.workers.rollout.vllm_rollout.utils", utils)
    _, config = composed(tmp_path, name, f"cluster.engine={engine}", "cluster.sequence_parallel=1")
    validate_config(config, need_reference_policy(config), need_critic(config))
    lora = resolve(name).config.model.lora
    assert asked == ([lora.rank] if lora and engine == "vllm" else [])
    assert need_reference_policy(config)
    assert not need_critic(config)
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    assert actor.engine.strategy == "fsdp2"
    assert actor.engine.mixed_precision["param_dtype"] == "bfloat16"
    assert omega_conf_to_dataclass(config.actor_rollout_ref.rollout).name == engine
    assert omega_conf_to_dataclass(config.algorithm).adv_estimator == "grpo"


def test_rows_shared_by_gpus_reach_the_engine(tmp_path: Path) -> None:
    _, config = composed(tmp_path, "cluster-qwen2.5-7b", "cluster.sequence_parallel=4")
    assert omega_conf_to_dataclass(config.actor_rollout_ref.actor).engine.ulysses_sequence_parallel_size == 4


def test_the_trainer_is_registered_under_the_name_that_is_written() -> None:
    assert TRAINER == REGISTERED
    assert Machine().trainer() == "mempo.cluster.trainer"


def test_our_trainer_may_be_imported_before_verls() -> None:
    both = "import mempo.cluster.trainer as ours; from verl.trainer.ppo.v1 import get_trainer_cls as theirs"
    same = f"assert theirs({TRAINER!r}) is ours.MempoTrainer"
    subprocess.run([sys.executable, "-c", f"{both}; {same}"], check=True)


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_the_learning_rate_is_ours_at_every_step(schedule: str) -> None:
    steps, ours = 7, OptimSettings.model_validate({"lr": 0.5, "schedule": schedule, "min_lr_ratio": 0.1})
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=ours.lr)
    if schedule == "constant":
        theirs = get_constant_schedule_with_warmup(optimizer, num_warmup_steps=0)
    else:
        theirs = get_cosine_schedule_with_warmup(
            optimizer, num_warmup_steps=0, num_training_steps=steps, min_lr_ratio=ours.min_lr_ratio
        )
    rates = []
    for _ in range(steps):
        rates.append(theirs.get_last_lr()[0])
        optimizer.step()
        theirs.step()
    assert rates == pytest.approx([learning_rate(ours, step, steps) for step in range(steps)])


@pytest.mark.parametrize(("ours", "theirs"), KL_TYPES.items())
def test_the_estimators_of_kl_are_the_same(ours: Any, theirs: str) -> None:
    # Below verl's cut at 10, which a difference of log-probs reaches from 2.6 on.
    both: Any = torch.rand(2, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    new, reference = both
    torch.testing.assert_close(kl_penalty(new, reference, theirs), kl_estimate(new, reference, ours))
