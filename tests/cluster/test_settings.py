"""Settings of a run on a cluster: what they refuse, and how verl's own keys are given."""

from __future__ import annotations

import pytest

from mempo.config import resolve
from mempo.config.cluster import ClusterSettings
from mempo.errors import ConfigError


def refusal(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve(None, overrides)
    return str(caught.value)


def test_a_configuration_without_the_section_is_one_of_this_process() -> None:
    assert resolve(None).config.cluster is None
    assert resolve(None, ["cluster.nodes=2"]).config.cluster == ClusterSettings(nodes=2)


def test_keys_of_verl_are_given_dotted_or_nested() -> None:
    dotted = resolve(None, ["cluster.verl={trainer.device: cpu, actor_rollout_ref.rollout.max_num_seqs: 8}"])
    nested = resolve(None, ["cluster.verl.trainer.device=cpu", "cluster.verl.actor_rollout_ref.rollout.max_num_seqs=8"])
    assert dotted.config.cluster is not None
    assert dotted.config.cluster.verl == {"trainer.device": "cpu", "actor_rollout_ref.rollout.max_num_seqs": 8}
    assert nested.config.cluster == dotted.config.cluster


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("{a.b: 1, a: {b: 2}}", "a.b is given twice"),
        ("{a: 1, a.b: 2}", "a and a.b are both given"),
        ("{+a.b: 1}", "'+a.b' is not a key of verl's"),
    ],
)
def test_what_cannot_be_a_key_is_refused(given: str, said: str) -> None:
    assert said in refusal(f"cluster.verl={given}")


def test_a_resolved_configuration_reads_back_the_same() -> None:
    settings = ClusterSettings(verl={"actor_rollout_ref": {"rollout": {"engine_kwargs": {"vllm": {}}}}})
    assert ClusterSettings.model_validate(settings.model_dump(mode="json")) == settings


@pytest.mark.parametrize("key", ["nodes=0", "engine=tgi", "gpu_memory_fraction=1", "loggers=[file]", "node=2"])
def test_values_that_nothing_can_be_done_with_are_refused(key: str) -> None:
    assert "cluster" in refusal(f"cluster.{key}")


def test_rows_that_can_be_scored_grow_with_the_gpus_that_share_them() -> None:
    assert ClusterSettings(micro_batch_tokens=100, sequence_parallel=4).scored_tokens == 400
    assert ClusterSettings(micro_batch_tokens=100, score_batch_tokens=300, sequence_parallel=2).scored_tokens == 600
    assert ClusterSettings(nodes=3, gpus_per_node=4).gpus == 12
