# pyright: reportMissingImports=false
"""Rows and probes as verl takes them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from tensordict import TensorDict
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop
from verl.utils import tensordict_utils as tu
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from mempo.cluster.agent_loop import MempoAgentLoop, outputs_of, response_start
from mempo.cluster.scorer import ActorScorer, spread_over_ranks
from mempo.config.rewards import OutcomeSettings
from mempo.config.rollout import DecodingSettings
from mempo.engine.scorer import LocalScorer
from mempo.rewards.outcome import outcome_score
from mempo.rollout.agent import Job, rollout
from mempo.rollout.interfaces import SamplerError, ScoreRequest
from mempo.rollout.question import Question
from mempo.rollout.trajectory import Trajectory, rows_of
from tests import tiny

TOKENIZER = tiny.make_tokenizer(tags="added")
QUESTION = Question("q1", "Which city?", "Paris")
TURNS = [
    "<mem>first</mem><think>so</think><search>capital</search>",
    "<mem>then</mem><think>more</think><search>again</search>",
    "<mem>last</mem><think>b</think><answer>Paris</answer>",
]


def played(context: str, texts: list) -> Trajectory:
    agent = tiny.make_agent(TOKENIZER, context)
    return asyncio.run(rollout(agent, tiny.Scripted(TOKENIZER, texts), Job(QUESTION, 0, ("s",)), DecodingSettings()))


@pytest.mark.parametrize(("context", "rows"), [("memory", 3), ("full", 1)])
def test_rows_are_those_of_the_local_engine(context: str, rows: int) -> None:
    made = played(context, TURNS)
    found = outputs_of(QUESTION, made, outcome_score(QUESTION, made, OutcomeSettings()), [7, 7, 8])
    assert len(found) == rows
    logprobs = {turn.index: turn.logprobs for turn in made.turns}
    for row, output in zip(rows_of(made), found, strict=True):
        start = response_start(row)
        assert (*output.prompt_ids, *output.response_ids) == row.ids
        assert output.response_logprobs == row.spread(logprobs)[start:]
        assert output.response_mask[0] == 1
        assert sum(output.response_mask) == row.generated_tokens
        assert [i + start for i, kept in enumerate(output.response_mask) if kept] == [
            i for segment in row.segments for i in range(segment.start, segment.stop)
        ]
        assert (output.reward_score, output.num_turns) == (1.0, 3)
        assert output.extra_fields["reward_extra_info"]["em"] == 1.0
        assert (output.extra_fields["min_global_steps"], output.extra_fields["max_global_steps"]) == (7, 8)


def test_a_rollout_that_infrastructure_spoiled_has_no_rows() -> None:
    made = played("memory", [TURNS[0], SamplerError("gone")])
    assert made.is_error
    assert outputs_of(QUESTION, made, outcome_score(QUESTION, made, OutcomeSettings()), [7]) == []


def test_a_rollout_without_a_score_has_no_rows() -> None:
    made = played("memory", TURNS)
    unscored = outcome_score(QUESTION, made, OutcomeSettings(score="own:score"), lambda question, trajectory: None)
    assert outputs_of(QUESTION, made, unscored, [7]) == []


def test_a_tokenizer_unlike_its_family_s_plays_all_the_same() -> None:
    """verl's own loop wants `<|im_end|>` and a newline of one token from everything that calls itself Qwen."""
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": {}}, "mempo": {"output": "x"}})
    given = {
        "trainer_config": SimpleNamespace(config=config),
        "data_config": SimpleNamespace(config=OmegaConf.create({})),
        "server_manager": None,
        "tokenizer": TOKENIZER.hf,
        "processor": None,
        "dataset_cls": None,
        "hf_model_type": "qwen2",
    }

    async def made(loop: Any) -> Any:
        return loop(**given)

    with pytest.raises(ValueError, match=r"newline|im_end"):
        asyncio.run(made(SingleTurnAgentLoop))
    assert asyncio.run(made(MempoAgentLoop)).config is config


WHOLE = ((5, 6, 7, 8, 9), (5, 6, 9), (7, 6, 5, 8))
"""Prefix and continuation."""

# --- probes ----------------------------------------------------------------------------------------------------------


@given(lengths=st.lists(st.integers(1, 50), min_size=1, max_size=30), ranks=st.integers(1, 5))
def test_every_rank_gets_equally_many_rows_of_like_length(lengths: list[int], ranks: int) -> None:
    order = spread_over_ranks(lengths, ranks)
    assert len(order) % ranks == 0
    assert set(order) == set(range(len(lengths)))
    piece = len(order) // ranks
    totals = [sum(lengths[i] for i in order[rank * piece : (rank + 1) * piece]) for rank in range(ranks)]
    assert max(totals) - min(totals) <= max(lengths) - min(lengths)


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_answers_are_those_of_the_local_scorer(ranks: int, temperature: float) -> None:
    policy = tiny.tiny_llama(TOKENIZER)
    asked = []

    def compute(data: TensorDict) -> dict[str, torch.Tensor]:
        asked.append(len(data))
        with torch.no_grad():
            rows = []
            for ids in data["input_ids"].unbind():
                logits = policy.model(ids[None]).logits[0] / data["temperature"]
                following = torch.cat([ids[1:], ids[:1]])
                rows.append(torch.log_softmax(logits, -1)[torch.arange(len(ids)), following])
        return {"log_probs": torch.nested.as_nested_tensor(rows, layout=torch.jagged)}

    requests = [
        ScoreRequest((5, 6, 7), (8, 9)),
        ScoreRequest((5, 6), (7, 8, 9), which=(2,)),
        ScoreRequest((5, 6, 7), (8, 9), which=(1,)),
        ScoreRequest((5,), (6,)),
    ]
    found = ActorScorer(compute, ranks).score(requests, temperature)
    wanted = LocalScorer(policy).score(requests, temperature)
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.dtype == np.float64
        assert ours == pytest.approx(theirs, abs=1e-5)
    assert asked == [3]  # the same row is asked for once


def test_verls_engine_takes_probes_packed_end_to_end() -> None:
    """As on GPUs, where flash attention keeps packed rows apart: its own preparation of inputs and outputs."""
    policy = tiny.tiny_llama(TOKENIZER)
    engine: Any = object.__new__(FSDPEngineWithLMHead)
    engine.__dict__.update(pad_to_length=False, use_ulysses_sp=False, engine_config=SimpleNamespace(), module=None)

    def compute(data: TensorDict) -> dict[str, torch.Tensor]:
        tu.assign_non_tensor(data, use_remove_padding=True)
        inputs, arguments = engine.prepare_model_inputs(data)
        assert inputs["input_ids"].shape == inputs["position_ids"].shape == (1, sum(map(len, WHOLE)))
        starts = (inputs["position_ids"][0] == 0).nonzero().flatten().tolist()
        with torch.no_grad():
            rows = torch.tensor_split(inputs["input_ids"][0], starts[1:])
            logits = torch.cat([policy.model(row[None]).logits[0] for row in rows])
        return engine.prepare_model_outputs(SimpleNamespace(logits=logits[None]), arguments, data, None)

    requests = [ScoreRequest(row[:2], row[2:]) for row in WHOLE]
    wanted = LocalScorer(policy).score(requests, 0.7)
    for ours, theirs in zip(ActorScorer(compute, 1).score(requests, 0.7), wanted, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-5)


def test_nothing_asked_is_nothing_computed() -> None:
    def never(_: TensorDict) -> TensorDict:
        raise AssertionError("asked")

    assert ActorScorer(never, 2).score([]) == []
