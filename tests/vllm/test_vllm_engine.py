"""vLLM itself behind our interface: one engine, started once, over a tiny model."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mempo.config.engine import LoraSettings, SamplerSettings
from mempo.engine.lora import add_lora
from mempo.engine.policy import Policy
from mempo.engine.sampler import generate_batch
from mempo.engine.scorer import score_naive
from mempo.engine.vllm import start_engine
from mempo.engine.vllm_sampler import VllmSampler
from mempo.errors import UserError
from mempo.rollout.interfaces import Generation, SamplingParams, ScoreRequest
from mempo.rollout.trajectory import GenerationStop
from tests.tiny import make_tokenizer, tiny_llama

pytestmark = pytest.mark.vllm
TOKENIZER = make_tokenizer()
PROMPTS = [(5, 6, 7), (8, 9, 10, 11, 12), (15,), tuple(range(20, 60))]
SETTINGS = SamplerSettings(engine="vllm", kv_cache_mib=64, compile=False, max_rows=64)
WINDOW = 256


def tiny(seed: int = 0) -> Policy:
    """The kernels for CPUs want heads of 32 at least."""
    return tiny_llama(TOKENIZER, seed, hidden_size=64, num_key_value_heads=1)


@pytest.fixture(scope="module")
def engine() -> Any:
    return start_engine(tiny(), SETTINGS, WINDOW)


def over(engine: Any, policy: Policy) -> VllmSampler:
    return VllmSampler(policy, SETTINGS, WINDOW, start=lambda *_: engine)


def assert_scored(
    policy: Policy, prompts: list[tuple[int, ...]], found: list[Generation], temperatures: list[float]
) -> None:
    for prompt, made, temperature in zip(prompts, found, temperatures, strict=True):
        (plain,) = score_naive(policy, [ScoreRequest(prompt, made.ids)], temperature or 1.0)
        np.testing.assert_allclose(made.logprobs, plain, rtol=0, atol=2e-5)


def test_logprobs_are_those_of_the_policy_at_the_sampling_temperature(engine: Any) -> None:
    policy = tiny()
    sampler = over(engine, policy)
    temperatures = [1.0, 0.6, 1.5, 0.0]
    sampling = [SamplingParams(20, t, seed=n) for n, t in enumerate(temperatures)]
    found = sampler(PROMPTS, sampling)
    assert_scored(policy, PROMPTS, found, temperatures)
    assert sampler.logp_gap is not None
    assert sampler.logp_gap < 1e-5
    assert all(made.ids for made in found)


def test_greedy_is_what_the_local_engine_says(engine: Any) -> None:
    policy = tiny()
    sampling = [SamplingParams(12, temperature=0)] * len(PROMPTS)
    found, expected = over(engine, policy)(PROMPTS, sampling), generate_batch(policy, PROMPTS, sampling)
    assert [(made.ids, made.stop) for made in found] == [(made.ids, made.stop) for made in expected]


def test_a_seed_repeats_alone_and_among_others(engine: Any) -> None:
    sampler = over(engine, tiny())
    sampling = [SamplingParams(12, seed=(1 << 64) - n - 2) for n in range(8)]
    together = sampler([PROMPTS[0]] * 8, sampling)
    alone = [sampler([PROMPTS[0]], [one])[0] for one in sampling]
    assert [made.ids for made in together] == [made.ids for made in alone]
    assert len({made.ids for made in together}) == 8
    fresh = sampler([PROMPTS[0]] * 4, [SamplingParams(12)] * 4)
    assert len({made.ids for made in fresh}) == 4


def test_samples_follow_the_distribution(engine: Any) -> None:
    policy, count = tiny(), 2000
    found = over(engine, policy)([PROMPTS[0]] * count, [SamplingParams(1, 0.5, seed=n) for n in range(count)])
    sampled = Counter(made.ids[0] for made in found)
    with torch.no_grad():
        logits = policy.model(input_ids=torch.tensor([PROMPTS[0]])).logits[0, -1].double()
    probs = torch.softmax(logits / 0.5, -1)
    for token in probs.topk(4).indices.tolist():
        expected = count * float(probs[token])
        assert abs(sampled[token] - expected) < 5 * expected**0.5, token


def test_stops_are_those_of_the_same_stream_without_stop_strings(engine: Any) -> None:
    sampler, count, stops = over(engine, tiny()), 24, ("at", "e</", "1")
    plain = sampler([PROMPTS[0]] * count, [SamplingParams(60, seed=n) for n in range(count)])
    stopped = sampler([PROMPTS[0]] * count, [SamplingParams(60, seed=n, stop=stops) for n in range(count)])
    kinds = Counter(made.stop for made in stopped)
    assert kinds[GenerationStop.STOP_STRING] > 3
    for whole, cut in zip(plain, stopped, strict=True):
        ends = [n for n in range(1, len(whole.ids) + 1) if any(s in TOKENIZER.decode(whole.ids[:n]) for s in stops)]
        assert cut.ids == whole.ids[: ends[0] if ends else None]
        assert cut.stop is (GenerationStop.STOP_STRING if ends else whole.stop)


def test_end_of_sequence_is_kept(engine: Any) -> None:
    sampler = over(engine, tiny())
    found = sampler([PROMPTS[2]] * 40, [SamplingParams(200, seed=n) for n in range(40)])
    ended = [made for made in found if made.stop is GenerationStop.EOS]
    assert ended
    assert all(made.ids[-1] == TOKENIZER.eos_id for made in ended)
    assert all(TOKENIZER.eos_id not in made.ids[:-1] for made in found)
    assert all(len(made.ids) == 200 for made in found if made.stop is GenerationStop.LENGTH)


def test_the_window_can_be_filled(engine: Any) -> None:
    prompt = tuple(5 + n % 200 for n in range(WINDOW - 8))
    (made,) = over(engine, tiny())([prompt], [SamplingParams(8, seed=3)])
    assert len(made.ids) == 8 or made.stop is GenerationStop.EOS


def test_top_k_of_one_is_greedy(engine: Any) -> None:
    sampler = over(engine, tiny())
    first, second = sampler([PROMPTS[1]] * 2, [SamplingParams(8, top_k=1, seed=1), SamplingParams(8, temperature=0)])
    assert first.ids == second.ids
    assert first.logprobs == ()


def test_weights_are_vllms_own_until_they_are_renewed(engine: Any) -> None:
    policy = tiny()
    sampler = over(engine, policy)
    sampling = [SamplingParams(12, seed=n) for n in range(len(PROMPTS))]
    before = sampler(PROMPTS, sampling)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1.2)
    assert sampler(PROMPTS, sampling) == before
    policy.version += 1
    after = sampler(PROMPTS, sampling)
    assert after != before
    assert_scored(policy, PROMPTS, after, [1.0] * len(PROMPTS))
    assert_scored(tiny(), PROMPTS, before, [1.0] * len(PROMPTS))


@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "model.layers.1.self_attn.k_proj.weight"])
def test_one_number_that_differs_is_seen(engine: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from mempo.engine import vllm_sampler

    policy = tiny()
    honest = vllm_sampler.policy_digests

    def digests_of_newer(tensors: dict[str, torch.Tensor], dtype: torch.dtype) -> dict[str, int]:
        with torch.no_grad():
            value = policy.model.get_parameter(name)[3, 4]
            value.copy_(torch.nextafter(value, torch.tensor(9.0)))
        return honest(tensors, dtype)

    monkeypatch.setattr(vllm_sampler, "policy_digests", digests_of_newer)
    part = "layer 1" if "layers" in name else "embeddings"
    with pytest.raises(UserError, match=f"vLLM holds other weights than the policy in 1 of 3 parts .{part}"):
        over(engine, policy)(PROMPTS, [SamplingParams(2, seed=0)] * len(PROMPTS))


def test_an_adapter_is_merged_on_the_way(engine: Any) -> None:
    policy = add_lora(tiny(), LoraSettings(rank=2), seed=0, base_path="base")
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.05)
    found = over(engine, policy)(PROMPTS, [SamplingParams(12, seed=n) for n in range(len(PROMPTS))])
    assert_scored(policy, PROMPTS, found, [1.0] * len(PROMPTS))


def test_a_whole_run(tmp_path: Path) -> None:
    """Two steps of the quickstart, in a process of their own. Before the first update nothing but rounding makes the
    sampler's log-probs differ from the trainer's."""
    settings = f"output={tmp_path / 'run'} sft.steps=4 sft.lossy_steps=1 sft.demos=8 toy.warmup_steps=2 rl.steps=2 "
    settings += (
        "evaluate.questions=4 rl.questions_per_step=2 rl.rollouts_per_question=4 rl.loss.kl=k3 sampler.engine=vllm "
    )
    settings += "sampler.kv_cache_mib=64 sampler.compile=false"
    command = [sys.executable, "-m", "tests.vllm.run_cli", "train", "quickstart", *settings.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text("utf-8").splitlines()]
    steps = [line for line in lines if "update/k3_old" in line]
    assert len(steps) == 2
    assert all(abs(step["update/k3_old"]) < 1e-8 for step in steps)
    assert (tmp_path / "run" / "final" / "config.json").is_file()
