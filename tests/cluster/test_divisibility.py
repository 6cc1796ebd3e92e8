"""Every refusal says the equation with its numbers and a value that works; with that value it is gone."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from mempo.cluster.constraints import check_divides, check_enough_questions
from mempo.cluster.model_shape import ModelShape, model_shape
from mempo.config import Config, resolve
from mempo.errors import ConfigError, UserError

BASE = ("model.path=m", "data.environment=atlas", "rl.steps=2", "rl.questions_per_step=8", "rl.rollouts_per_question=4")
QWEN_7B = ModelShape(heads=28, key_value_heads=4, window_tokens=32_768)


def config(*overrides: str) -> Config:
    return resolve(None, [*BASE, *overrides]).config


def refusal(settings: Config, shape: ModelShape | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        check_divides(settings, shape)
    return str(caught.value)


def proposal(message: str) -> str:
    found = re.search(r"set ([a-z_.]+=[\w.]+)", message)
    assert found is not None, message
    return found.group(1)


CASES = [
    (["cluster.gpus_per_node=8", "cluster.tensor_parallel=3"], None, "1 * 8 % 3 = 2", "cluster.tensor_parallel=2"),
    (
        ["cluster.nodes=2", "cluster.gpus_per_node=6", "cluster.tensor_parallel=4"],
        None,
        "6 % 4 = 2",
        "cluster.tensor_parallel=3",
    ),
    (
        ["cluster.nodes=3", "cluster.gpus_per_node=4", "cluster.tensor_parallel=8"],
        None,
        "3 * 4 % 8 = 4",
        "cluster.tensor_parallel=4",
    ),
    (
        ["cluster.sequence_parallel=3", "model.attention=flash_attention_2"],
        None,
        "1 * 8 % 3 = 2",
        "cluster.sequence_parallel=2",
    ),
    (
        ["cluster.sequence_parallel=2"],
        None,
        "cluster.sequence_parallel 2 needs rows without padding",
        "model.attention=flash_attention_2",
    ),
    (["cluster.tensor_parallel=8"], QWEN_7B, "28 % 8 = 4", "cluster.tensor_parallel=4"),
    (
        ["cluster.gpus_per_node=7", "cluster.tensor_parallel=7", "limits.max_context_tokens=64"],
        QWEN_7B,
        "4 % 7 = 4",
        "cluster.tensor_parallel=1",
    ),
    (
        ["cluster.sequence_parallel=8", "model.attention=flash_attention_2"],
        QWEN_7B,
        "28 % 8 = 4",
        "cluster.sequence_parallel=4",
    ),
    (["rl.rollouts_per_question=1"], None, "does not hold: 1;", "rl.rollouts_per_question=16"),
    (
        ["cluster.nodes=4", "rl.updates_per_step=8"],
        None,
        "8 / 8 * 4 = 4 < 32",
        "rl.rollouts_per_question=32",
    ),
    (["cluster.agent_workers=9"], None, "9 > 8", "cluster.agent_workers=8"),
    (["cluster.micro_batch_tokens=1000"], None, "1000 * 1 < 4096", "cluster.micro_batch_tokens=4416"),
    (
        ["cluster.micro_batch_tokens=1000", "cluster.sequence_parallel=2", "model.attention=flash_attention_2"],
        None,
        "1000 * 2 < 4096",
        "cluster.micro_batch_tokens=2208",
    ),
    (["cluster.micro_batch_tokens=4096"], None, "4096 * 1 < 4416", "cluster.score_batch_tokens=4416"),
    (
        ["cluster.score_batch_tokens=4000", "rl.memory_signal=false"],
        None,
        "4000 * 1 < 4096",
        "cluster.score_batch_tokens=4096",
    ),
    (
        ["limits.max_context_tokens=8192"],
        ModelShape(window_tokens=8000),
        "8192 > 8000",
        "limits.max_context_tokens=8000",
    ),
    (
        ["limits.max_context_tokens=8000", "cluster.engine=sglang"],
        ModelShape(window_tokens=8000),
        "+ 1 (SGLang keeps a token free)",
        "limits.max_context_tokens=7999",
    ),
    (["model.lora.rank=1024"], None, "1024, and vLLM serves no larger adapter", "model.lora.rank=512"),
]


@pytest.mark.parametrize(("overrides", "shape", "equation", "works"), CASES, ids=[case[3] for case in CASES])
def test_what_does_not_divide_is_told_with_a_value_that_does(
    overrides: list[str], shape: ModelShape | None, equation: str, works: str
) -> None:
    said = refusal(config(*overrides), shape)
    assert equation in said
    assert proposal(said) == works
    check_divides(config(*overrides, works), shape)


def test_an_adapter_on_experts_is_refused_before_training() -> None:
    shape = ModelShape.of({"num_attention_heads": 4, "text_config": {"num_experts": 8}})
    lora = ("model.lora.rank=8",)
    assert "the model has 8 experts a layer" in refusal(config(*lora), shape)
    check_divides(config(*lora, "model.lora.targets=[q_proj,k_proj]"), shape)
    check_divides(config(), shape)
    check_divides(config(*lora), ModelShape(experts=1))


def test_nothing_to_do_is_refused() -> None:
    said = refusal(resolve(None, ["model.path=m", "data.environment=atlas"]).config)
    assert "rl.steps is 0" in said


def test_a_server_may_take_whole_nodes() -> None:
    check_divides(config("cluster.nodes=4", "cluster.gpus_per_node=4", "cluster.tensor_parallel=8"))


def test_the_old_log_probs_of_the_server_need_no_scoring_pass() -> None:
    settings = ("cluster.score_batch_tokens=16", "rl.memory_signal=false", "cluster.recompute_logprobs=false")
    check_divides(config(*settings))
    assert "16 * 1 < 4096" in refusal(config(*settings, "rl.loss.kl=k3", "rl.loss.kl_coef=0.001"))


@pytest.mark.parametrize(
    ("questions", "updates", "works"),
    [(7, 1, "rl.questions_per_step=7"), (7, 4, "rl.questions_per_step=4"), (3, 4, "rl.updates_per_step=1")],
)
def test_a_batch_larger_than_the_data_is_refused(questions: int, updates: int, works: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_enough_questions(config(f"rl.updates_per_step={updates}"), questions)
    assert f"{questions} < 8" in str(caught.value)
    assert proposal(str(caught.value)) == works
    check_enough_questions(config(), 8)


def test_the_shape_of_a_model_is_read_from_its_folder(tmp_path: Path) -> None:
    assert model_shape("org/name") == model_shape(None) == ModelShape()
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"num_attention_heads": 12, "max_position_embeddings": 512}), encoding="utf-8")
    assert model_shape(str(tmp_path)) == ModelShape(12, 12, 512)
    file.write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match="damaged"):
        model_shape(str(tmp_path))
