"""What `cluster.verl` may set, and what else must be right about it; found without verl and before anything starts."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from mempo.cluster.constraints import check_divides
from mempo.cluster.verl_keys import KINDS, changes_nothing_learnt, check_keys, row_of, rows
from mempo.config import Config, resolve
from mempo.errors import ConfigError

ROOT = Path(__file__).parents[2]
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


def refusal(key: str, value: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        check_keys({key: value})
    return str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        # would change what is learnt
        (f"{ACTOR}.loss_agg_mode", "seq-mean-token-mean", "the padding of mini-batches would enter the loss"),
        (f"{ACTOR}.strategy", "megatron", "are made for FSDP2"),
        (f"{ACTOR}.megatron.tensor_model_parallel_size", 2, "verl 0.9.1 has no key"),
        (f"{ACTOR}.policy_loss.loss_mode", "gspo", "another loss_mode is another method"),
        (f"{ACTOR}.policy_loss.clip_cov_ratio", 0.1, "another loss_mode is another method"),
        ("algorithm.rollout_correction.rollout_is", "token", "weighs or drops tokens of the loss"),
        ("algorithm.rollout_correction.rollout_rs_threshold", 2.0, "weighs or drops tokens of the loss"),
        ("algorithm.rollout_correction.bypass_mode", True, "set cluster.recompute_logprobs"),
        (f"{ACTOR}.use_dynamic_bsz", False, "set cluster.micro_batch_tokens"),
        (f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu", 2, "set cluster.score_batch_tokens"),
        (f"{ACTOR}.entropy_coeff", 0.01, "no entropy term"),
        (f"{ACTOR}.clip_ratio_c", 3.0, "no second clip"),
        (f"{ACTOR}.clip_ratio_high", 0.28, "set rl.loss.clip_high"),
        (f"{ACTOR}.use_prefix_grouper", True, "one prompt a group"),
        (f"{ACTOR}.optim.optimizer", "SGD", "set rl.optim.kind"),
        (f"{ACTOR}.fsdp_config.qat.enable", True, "other weights"),
        (f"{ROLLOUT}.top_p", 0.9, "the whole vocabulary"),
        (f"{ROLLOUT}.repetition_penalty", 1.1, "knows no penalty"),
        (f"{ROLLOUT}.quantization", "fp8", "other weights than the update trains"),
        (f"{ROLLOUT}.over_sample_rate", 0.2, "missing from their groups"),
        (f"{ROLLOUT}.disaggregation.enabled", True, "counted by cluster.tensor_parallel"),
        (f"{ROLLOUT}.multi_turn.enable", True, "set agent.* and limits.*"),
        (f"{ROLLOUT}.agent.agent_loop_manager_class", "a.B", "rests on verl's own"),
        ("actor_rollout_ref.model.override_config.rope_theta", 1e6, "the model's own config.json"),
        ("actor_rollout_ref.model.lora.rank", 8, "set model.lora"),
        ("actor_rollout_ref.model.trust_remote_code", True, "is not run"),
        ("algorithm.use_pf_ppo", True, "groups would no longer be whole"),
        ("algorithm.gamma", 0.99, "no discount"),
        ("critic.optim.lr", 1e-5, "no critic"),
        ("distillation.enabled", True, "no teacher"),
        ("reward.custom_reward_function.path", "x.py", "set reward.*"),
        ("skip.rollout.enable", True, "from a file"),
        # would break the run, or lose something
        (f"{ACTOR}.checkpoint.async_save", True, "nothing could be resumed"),
        (f"{ACTOR}.checkpoint.save_contents", ["model"], "mempo cluster convert read them"),
        ("trainer.del_local_ckpt_after_load", True, "a second --resume"),
        ("trainer.max_actor_ckpt_to_keep", 1, "set cluster.keep_checkpoints"),
        ("trainer.save_freq", 5, "set rl.save_every"),
        ("trainer.v1.sampler.custom_sampler.path", "x.py", "reads whole groups"),
        ("trainer.v1.separate_async.parameter_sync_step", 2, "the plug-in's trainer is synchronous"),
        ("trainer.balance_batch", False, "puts rows in their order"),
        ("data.filter_overlong_prompts", True, "writes the files that verl reads"),
        ("ray_kwargs.ray_init.address", "auto", "give --address"),
        # nobody's
        (f"{ROLLOUT}.gpu_memory_utilisation", 0.5, "did you mean 'actor_rollout_ref.rollout.gpu_memory_utilization'?"),
        ("trainer.devise", "cpu", "verl 0.9.1 has no key trainer.devise; did you mean 'trainer.device'?"),
        ("trainer", None, "trainer is a section of verl's; name the keys in it one by one"),
        (f"{ROLLOUT}.val_kwargs", {}, "is a section of verl's"),
        (f"{ROLLOUT}.max_num_seqs.vllm", 8, "has no keys below it"),
        # of another kind
        (f"{ROLLOUT}.max_num_seqs", "512", "is a whole number of at least 1, not '512'"),
        (f"{ROLLOUT}.max_num_seqs", 0, "is a whole number of at least 1, not 0"),
        (f"{ROLLOUT}.max_num_seqs", True, "is a whole number of at least 1, not True"),
        (f"{ROLLOUT}.max_num_seqs", None, "is a whole number of at least 1, not None"),
        (f"{ROLLOUT}.enforce_eager", "yes", "is true or false, not 'yes'"),
        (f"{ROLLOUT}.enforce_eager", 1, "is true or false, not 1"),
        (f"{ROLLOUT}.cudagraph_capture_sizes", 8, "is a list, or null, not 8"),
        (f"{ACTOR}.optim.lr_warmup_steps_ratio", 10, "is a number from 0 to 1, not 10"),
        (f"{ACTOR}.optim.num_cycles", float("nan"), "is a number, not nan"),
        ("algorithm.filter_groups.metric", "acc", "compared by the score of their rollouts"),
    ],
)
def test_what_may_not_be_set_is_refused_by_name_with_the_reason(key: str, value: Any, said: str) -> None:
    found = refusal(key, value)
    assert found.startswith("cluster.verl: ")
    assert key in found
    assert said in found


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (f"{ROLLOUT}.max_num_seqs", 512),
        (f"{ROLLOUT}.cudagraph_capture_sizes", None),
        (f"{ROLLOUT}.engine_kwargs.vllm.swap_space", 4),
        (f"{ACTOR}.optim.lr_warmup_steps", 10),
        (f"{ACTOR}.fsdp_config.offload_policy", True),
        ("actor_rollout_ref.ref.fsdp_config.reshard_after_forward", True),
        ("ray_kwargs.ray_init.num_cpus", 32),
        ("algorithm.filter_groups.enable", True),
    ],
)
def test_what_may_be_set(key: str, value: Any) -> None:
    check_keys({key: value})


def test_the_row_of_a_key_is_its_own_or_the_nearest_above() -> None:
    for key, row in {
        f"{ROLLOUT}.n": f"{ROLLOUT}.n",
        f"{ROLLOUT}.trace.backend": f"{ROLLOUT}.trace",
        "algorithm.rollout_correction.bypass_mode": "algorithm.rollout_correction.bypass_mode",
        "algorithm.rollout_correction.loss_type": "algorithm.rollout_correction.*",
        "data.image_key": "data.*",
    }.items():
        found = row_of(key)
        assert found is not None
        assert found.key == row
    assert row_of(f"{ROLLOUT}.nn") is None


def test_every_row_can_be_checked_and_says_why() -> None:
    for row in rows().values():
        assert row.text
        if row.rule == "allowed":
            assert row.text.removesuffix("?") in KINDS, row.key
        else:
            assert not row.resume


def test_memory_and_speed_may_change_on_resume_and_what_is_learnt_may_not() -> None:
    free = [f"{ROLLOUT}.max_num_seqs", f"{ACTOR}.fsdp_config.reshard_after_forward", f"{ROLLOUT}.trace.backend"]
    fixed = [f"{ACTOR}.optim.lr_warmup_steps", "algorithm.filter_groups.enable", f"{ROLLOUT}.engine_kwargs.vllm.x"]
    assert changes_nothing_learnt([*free, *fixed]) == free


def test_the_page_of_verls_keys_is_current() -> None:
    page = runpy.run_path(str(ROOT / "scripts" / "verl_keys_reference.py"), run_name="page")["page"]()
    assert page == (ROOT / "docs" / "verl-keys.md").read_text("utf-8"), "call make docs"


# --- what goes with what ---------------------------------------------------------------------------------------------

BASE = ("model.path=m", "data.environment=atlas", "rl.steps=2", "rl.questions_per_step=8", "rl.rollouts_per_question=4")


def config(verl: dict[str, Any], *overrides: str) -> Config:
    made = resolve(None, [*BASE, *overrides, "cluster.nodes=1"]).config
    assert made.cluster is not None
    return made.model_copy(update={"cluster": made.cluster.model_copy(update={"verl": verl})})


QUEUE = "transfer_queue.backend.SimpleStorage.total_storage_size"


@pytest.mark.parametrize(
    ("verl", "overrides", "said", "works"),
    [
        (
            {f"{ROLLOUT}.enable_chunked_prefill": False},
            ("limits.max_context_tokens=9000", "cluster.micro_batch_tokens=16384"),
            "8192 < 9000",
            {f"{ROLLOUT}.enable_chunked_prefill": False, f"{ROLLOUT}.max_num_batched_tokens": 9000},
        ),
        (
            {f"{ROLLOUT}.max_num_seqs": 10_000},
            (),
            f"8192 < 10000; set {ROLLOUT}.max_num_seqs=8192",
            {f"{ROLLOUT}.max_num_seqs": 8192},
        ),
        (
            {f"{ROLLOUT}.expert_parallel_size": 2},
            ("cluster.tensor_parallel=4",),
            "2 is neither 4 nor 1",
            {f"{ROLLOUT}.expert_parallel_size": 4},
        ),
        # (8 turns + 2) * (2 * 8 * 4 rollouts of a step + 100 of a validation)
        ({QUEUE: 1000}, ("limits.max_turns=8", "evaluate.questions=100"), f"{QUEUE}=1640", {QUEUE: 1640}),
    ],
)
def test_sizes_that_do_not_go_together_are_refused_with_ones_that_do(
    verl: dict[str, Any], overrides: tuple[str, ...], said: str, works: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError) as caught:
        check_divides(config(verl, *overrides))
    assert said in str(caught.value)
    check_divides(config(works, *overrides))
