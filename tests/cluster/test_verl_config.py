"""One of our configurations in verl's words: what arrives, what is refused, and that the file reads back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from mempo.cluster.verl_config import verl_config
from mempo.config import Config, recipe_names, resolve
from mempo.config.yaml_text import dump_yaml
from mempo.errors import ConfigError

BASE = ("model.path=org/model", "data.train=train.jsonl", "data.test=test.jsonl", "data.server=http://127.0.0.1:8013")
RL = ("rl.steps=30", "rl.questions_per_step=8", "rl.rollouts_per_question=4")
CLUSTER_RECIPES = [name for name in recipe_names() if name.startswith("cluster-")]


def made(*overrides: str, source: str | None = None, **options: Any) -> dict[str, Any]:
    base = () if source else (*BASE, *RL)
    resolved = resolve(source, [*base, *overrides])
    return verl_config(resolved.config, resolved.plain(), Path("runs/mine"), **options)


def at(config: dict[str, Any], key: str) -> Any:
    found: Any = config
    for part in key.split("."):
        found = found[part]
    return found


def refusal(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        made(*overrides)
    return str(caught.value)


ACTOR = "actor_rollout_ref.actor."
ROLLOUT = "actor_rollout_ref.rollout."
MODEL = "actor_rollout_ref.model."
QUEUE = "transfer_queue.backend.SimpleStorage.total_storage_size"


@pytest.mark.parametrize(
    ("overrides", "key", "value"),
    [
        ([], "trainer.v1.trainer_mode", "mempo"),
        ([], f"{ROLLOUT}agent.default_agent_loop", "mempo"),
        ([], "algorithm.adv_estimator", "grpo"),
        ([], "data.train_batch_size", 8),
        ([], f"{ACTOR}ppo_mini_batch_size", 8),
        (["rl.updates_per_step=4"], f"{ACTOR}ppo_mini_batch_size", 2),
        ([], f"{ROLLOUT}n", 4),
        (["rl.temperature=0.7"], f"{ROLLOUT}temperature", 0.7),
        (["limits.max_context_tokens=3000"], f"{ROLLOUT}max_model_len", 3000),
        (["limits.max_context_tokens=3000", "cluster.engine=sglang"], f"{ROLLOUT}max_model_len", 3001),
        (["limits.max_context_tokens=3000"], "data.max_prompt_length", 3000),
        (["limits.max_context_tokens=3000"], "data.max_response_length", 3000),
        (["evaluate.temperature=0"], f"{ROLLOUT}val_kwargs.do_sample", False),
        ([], QUEUE, 100_000),
        # 2 * 8 * 512 rollouts of a step, 100 of a validation, each of up to 16 rows and two more
        (["rl.rollouts_per_question=512", "limits.max_turns=16", "evaluate.questions=100"], QUEUE, 18 * 8292),
        (["evaluate.top_k=5"], f"{ROLLOUT}val_kwargs.top_k", 5),
        ([], f"{ROLLOUT}val_kwargs.top_k", -1),
        (["evaluate.rollouts_per_question=3"], f"{ROLLOUT}val_kwargs.n", 3),
        (["rl.loss.clip_high=0.28"], f"{ACTOR}clip_ratio_high", 0.28),
        (["rl.loss.clip_low=0.1"], f"{ACTOR}clip_ratio_low", 0.1),
        ([], f"{ACTOR}use_kl_loss", False),
        (["rl.loss={kl: k3, kl_coef: 0.01}"], f"{ACTOR}kl_loss_type", "low_var_kl"),
        (["rl.loss={kl: k2, kl_coef: 0.01}"], f"{ACTOR}kl_loss_type", "mse"),
        (["rl.loss={kl: k2, kl_coef: 0.01}"], f"{ACTOR}kl_loss_coef", 0.01),
        (["memory={baseline: full, full_policy: reference}"], f"{ACTOR}use_kl_loss", True),
        (["memory={baseline: full, full_policy: reference}"], f"{ACTOR}kl_loss_coef", 0.0),
        (["rl.optim={lr: 3e-6, beta2: 0.95}"], f"{ACTOR}optim.betas", [0.9, 0.95]),
        (["rl.optim={lr: 3e-6}"], f"{ACTOR}optim.lr", 3e-6),
        (["rl.optim.max_grad_norm=0.5"], f"{ACTOR}optim.clip_grad", 0.5),
        (["rl.optim={schedule: cosine, min_lr_ratio: 0.1}"], f"{ACTOR}optim.min_lr_ratio", 0.1),
        (["rl.optim.warmup_steps=1"], f"{ACTOR}optim.lr_warmup_steps", 0),
        (["model.autocast=bfloat16"], f"{ACTOR}fsdp_config.model_dtype", "float32"),
        (["model.autocast=bfloat16"], f"{ACTOR}fsdp_config.mixed_precision.param_dtype", "bfloat16"),
        (["model.autocast=bfloat16"], f"{ROLLOUT}dtype", "bfloat16"),
        (["model.dtype=bfloat16"], f"{ACTOR}fsdp_config.model_dtype", "bfloat16"),
        ([], f"{ACTOR}fsdp_config.mixed_precision.param_dtype", "float32"),
        ([], f"{MODEL}use_remove_padding", False),
        (["model={attention: flash_attention_2, autocast: bfloat16}"], f"{MODEL}use_remove_padding", True),
        (["model.gradient_checkpointing=true"], f"{MODEL}enable_gradient_checkpointing", True),
        (["model.lora={rank: 8, alpha: 16}"], f"{MODEL}lora_rank", 8),
        (["model.lora.targets=[q_proj, v_proj]"], f"{MODEL}target_modules", ["q_proj", "v_proj"]),
        (["model.lora.rank=8"], f"{ROLLOUT}load_format", "safetensors"),
        (["cluster.recompute_logprobs=false"], "algorithm.rollout_correction.bypass_mode", True),
        (["cluster.score_batch_tokens=32768"], f"{ROLLOUT}log_prob_max_token_len_per_gpu", 32768),
        (["cluster.score_batch_tokens=32768"], "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu", 32768),
        (["cluster.micro_batch_tokens=8192"], f"{ACTOR}ppo_max_token_len_per_gpu", 8192),
        (["cluster.micro_batch_tokens=8192"], f"{ROLLOUT}log_prob_max_token_len_per_gpu", 8192),
        (["rl.questions_per_step=4", "cluster.nodes=1"], f"{ROLLOUT}agent.num_workers", 4),
        ([], "trainer.total_training_steps", 30),
        (["cluster.test_every=0"], "trainer.test_freq", -1),
        (["cluster.test_every=5"], "trainer.test_freq", 5),
        (["cluster.test_every=5"], "trainer.val_before_train", True),
        (["data.test=null"], "trainer.val_before_train", False),
        (["data.test=null"], "data.val_files", str(Path("runs/mine/data/train.parquet").absolute())),
        (["seed=7"], "data.seed", 7),
        ([], "trainer.default_local_dir", str(Path("runs/mine/checkpoints").absolute())),
        (["cluster.verl={actor_rollout_ref.rollout.max_num_seqs: 512}"], f"{ROLLOUT}max_num_seqs", 512),
        (["cluster.verl={actor_rollout_ref.rollout.engine_kwargs.vllm.a: 3}"], f"{ROLLOUT}engine_kwargs.vllm.a", 3),
        ([], f"{ACTOR}fsdp_config.use_no_sync_for_gradient_accumulation", False),
        ([], "mempo.output", str(Path("runs/mine").absolute())),
    ],
)
def test_a_setting_arrives_under_verls_name(overrides: list[str], key: str, value: Any) -> None:
    assert at(made(*overrides), key) == value


def test_no_ratio_of_verl_reaches_its_second_clip() -> None:
    assert at(made(), f"{ACTOR}clip_ratio_c") > 4.9e8  # e^20, where verl cuts the ratio itself


def test_a_checkpoint_holds_what_convert_reads_and_what_resume_reads() -> None:
    assert "hf_model" in at(made(), f"{ACTOR}checkpoint.save_contents")
    assert at(made(), f"{ACTOR}checkpoint.load_contents") == ["model", "optimizer", "extra"]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["rl.loss.aggregate=rollout_mean"], "set rl.loss.aggregate=token_mean"),
        (["rl.optim.kind=muon"], "set rl.optim.kind=adamw"),
        (["rl.optim.schedule=linear"], "set rl.optim.schedule=cosine or constant"),
        (["rl.optim.warmup_steps=10"], "cluster.verl={actor_rollout_ref.actor.optim.lr_warmup_steps: 10}"),
        (["model.dtype=float16"], "model.autocast=bfloat16"),
        (["model.attention=flash_attention_2"], "model.attention=sdpa"),
        (["model.lora.alpha=1.5"], "must be a whole number"),
        (["sft.steps=10"], "set sft.steps=0 and model.path"),
        (["model.path=null"], "set model.path"),
        (["model.path=null", "server.url=http://127.0.0.1:1"], "set server=null and model.path"),
        (["sampler.engine=vllm"], "cluster.engine"),
        (["data.server=null", "data.index=index", "cluster.nodes=2"], "data.server instead"),
        (["data.server=null", "data.corpus=corpus.jsonl", "cluster.nodes=2"], "data.corpus=null"),
        (["cluster.tensor_parallel=3"], "cluster.tensor_parallel=2"),
        (["cluster.verl={trainer.nnodes: 2}"], "set cluster.nodes"),
        (["cluster.verl={trainer: null}"], "trainer is a section"),
        (["prompt.system=${now}"], "mempo.prompt.system holds '${now}'"),
        (["prompt.system=???"], "mempo.prompt.system holds '???'"),
    ],
)
def test_what_verl_has_no_equal_of_is_refused_with_the_remedy(overrides: list[str], said: str) -> None:
    assert said in refusal(*overrides)


def test_the_remedy_of_a_warm_up_is_taken() -> None:
    warm = "cluster.verl={actor_rollout_ref.actor.optim.lr_warmup_steps: 10}"
    assert at(made(warm), f"{ACTOR}optim.lr_warmup_steps") == 10


def test_a_toy_policy_is_refused() -> None:
    resolved = resolve("quickstart")
    with pytest.raises(ConfigError, match="no toy policy"):
        verl_config(resolved.config, resolved.plain(), Path("runs/mine"))


def test_ray_is_told_where_and_with_which_environment() -> None:
    assert at(made(), "ray_kwargs.ray_init") == {}
    told = at(made(address="10.0.0.1:6379", environment={"A": "1"}), "ray_kwargs.ray_init")
    assert told == {"address": "10.0.0.1:6379", "runtime_env": {"env_vars": {"A": "1"}}}


def test_no_test_questions_though_the_configuration_names_some() -> None:
    assert at(made(tested=False), "trainer.test_freq") == -1
    assert at(made(tested=False), "data.val_max_samples") == 1


@pytest.mark.parametrize("name", CLUSTER_RECIPES)
def test_the_section_of_a_recipe_is_its_whole_configuration(name: str) -> None:
    read = yaml.safe_load(dump_yaml(made(source=name)))
    ours = resolve(name, [f"output={Path('runs/mine').absolute()}"]).config
    received = Config.model_validate(read["mempo"])
    path = ours.model.path
    assert path is not None
    moved = ours.model.model_copy(update={"path": str(Path(path).absolute())})
    assert received == ours.model_copy(update={"model": moved})


def test_there_are_recipes_for_a_cluster() -> None:
    assert CLUSTER_RECIPES == ["cluster-qwen2.5-1.5b-lora", "cluster-qwen2.5-7b"]


def test_the_recipe_of_the_method_has_its_numbers() -> None:
    config = made(source="cluster-qwen2.5-7b")
    assert at(config, f"{ROLLOUT}n") == 16
    assert at(config, "data.train_batch_size") == 128
    assert at(config, f"{ACTOR}optim.lr") == 1e-6
    assert (at(config, f"{ACTOR}kl_loss_type"), at(config, f"{ACTOR}kl_loss_coef")) == ("low_var_kl", 0.001)
    assert at(config, "mempo.data.server") == "http://127.0.0.1:8013"
    assert at(config, "trainer.n_gpus_per_node") == 8


def test_texts_that_look_like_numbers_stay_texts() -> None:
    text = dump_yaml(made("prompt.system='1e5'", "cluster.project='007'"))
    assert "system: '1e5'" in text  # Hydra's reader takes 1e5 for a number, PyYAML does not
    assert yaml.safe_load(text)["trainer"]["project_name"] == "007"


def test_paths_mean_the_same_in_every_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.jsonl").write_text("", encoding="utf-8")
    config = made()
    assert at(config, "mempo.data.train") == str(tmp_path / "train.jsonl")
    assert at(config, "mempo.model.path") == at(config, f"{MODEL}path") == "org/model"
