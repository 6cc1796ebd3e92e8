"""The vLLM sampler over an engine of our own that speaks vLLM's interface; the real one is tried in `tests/vllm`."""

from __future__ import annotations

import copy
import importlib.util
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mempo.config import resolve
from mempo.config.engine import SamplerSettings
from mempo.engine.batcher import BatchingSampler
from mempo.engine.policy import Policy
from mempo.engine.prefix_forward import SharedForward
from mempo.engine.sampler import generate_batch
from mempo.engine.vllm import LAST_SEED, require_vllm, start_engine
from mempo.engine.vllm_sampler import VllmSampler
from mempo.errors import UserError
from mempo.rollout.interfaces import Generation, SamplingParams
from mempo.rollout.trajectory import GenerationStop
from mempo.setup import make_sampler
from mempo.train.rl import measures_of
from tests.tiny import make_tokenizer, tiny_llama

TOKENIZER = make_tokenizer()
PROMPTS = [(5, 6, 7), (8, 9, 10, 11), (15,)]
SETTINGS = SamplerSettings(engine="vllm")


class Engine:
    """What `vllm.LLM` does, one request after another: greedy, or as scripted. `does` lists what was asked of it."""

    def __init__(self, policy: Policy, script: Sequence[int] | None = None, finish: str | None = None) -> None:
        self.model: Any = copy.deepcopy(policy.model)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.zero_()
        self.script, self.finish = script, finish
        self.does: list[str] = []
        self.params: list[Any] = []
        self.loses: str | None = None
        self.logprob_shift = 0.0

    def collective_rpc(self, method: Any, args: tuple = (), kwargs: dict | None = None) -> list[Any]:
        if not isinstance(method, str):
            runner = SimpleNamespace(get_model=lambda: self.model)
            return [method(SimpleNamespace(model_runner=runner), *args)]
        self.does.append(method)
        weights = dict((kwargs or {})["weights_iterator"])
        if self.loses:
            del weights[self.loses]
        self.model.load_state_dict({k: v.clone() for k, v in weights.items()}, strict=False)
        return [None]

    def reset_prefix_cache(self) -> bool:
        self.does.append("reset_prefix_cache")
        return True

    def generate(self, requests: Sequence[Any], params: Sequence[Any], use_tqdm: bool) -> list[Any]:
        self.does.append("generate")
        self.params = list(params)
        return [self._one(r["prompt_token_ids"], p) for r, p in zip(requests, params, strict=True)]

    @torch.no_grad()
    def _one(self, prompt: list[int], params: Any) -> Any:
        ids, logprobs = list(prompt), []
        reason = "length"
        for k in range(params.max_tokens if self.script is None else len(self.script)):
            logits = self.model(input_ids=torch.tensor([ids])).logits[0, -1].double() / (params.temperature or 1.0)
            token = int(logits.argmax()) if self.script is None else self.script[k]
            value = float(torch.log_softmax(logits, -1)[token]) + self.logprob_shift
            logprobs.append({token: SimpleNamespace(logprob=value)})
            ids.append(token)
            if token in params.stop_token_ids:
                reason = "stop"
                break
        made = SimpleNamespace(token_ids=ids[len(prompt) :], logprobs=logprobs, finish_reason=self.finish or reason)
        return SimpleNamespace(outputs=[made])


@pytest.fixture(autouse=True)
def stub(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module: Any = ModuleType("vllm")
    module.SamplingParams = lambda **given: SimpleNamespace(**given)
    monkeypatch.setitem(sys.modules, "vllm", module)
    return module


def sampler_over(engine: Engine, policy: Policy, **settings: Any) -> VllmSampler:
    return VllmSampler(policy, SamplerSettings(engine="vllm", **settings), 64, start=lambda *_: engine)


def says(ids: Sequence[int], finish: str | None = None, **changes: Any) -> Generation:
    policy = tiny_llama(TOKENIZER)
    sampler = sampler_over(Engine(policy, ids, finish), policy)
    return sampler([(5, 6)], [SamplingParams(**{"max_new_tokens": 30, "seed": 1, **changes})])[0]


# --- generations ---------------------------------------------------------------------------------------------------


def test_greedy_is_what_the_local_engine_says() -> None:
    policy = tiny_llama(TOKENIZER)
    sampling = [SamplingParams(n + 3, temperature=0) for n in range(3)]
    found = sampler_over(Engine(policy), policy)(PROMPTS, sampling)
    for ours, theirs in zip(generate_batch(policy, PROMPTS, sampling), found, strict=True):
        assert (ours.ids, ours.stop) == (theirs.ids, theirs.stop)
        np.testing.assert_allclose(ours.logprobs, theirs.logprobs, rtol=0, atol=1e-5)


def test_end_of_sequence_is_kept_with_its_logprob() -> None:
    made = says([9, 10, TOKENIZER.eos_id])
    assert (made.ids, made.stop, len(made.logprobs)) == ((9, 10, TOKENIZER.eos_id), GenerationStop.EOS, 3)


def test_tokens_that_begin_after_a_stop_string_are_dropped() -> None:
    wanted = TOKENIZER.encode_trusted("<search>Paris</search>")
    made = says([*wanted, *TOKENIZER.encode_trusted(" and")], "stop", stop=("</search>",))
    assert (made.ids, made.stop) == (wanted, GenerationStop.STOP_STRING)
    assert len(made.logprobs) == len(wanted)


def test_an_end_that_only_vllm_sees_is_a_stop_string() -> None:
    assert says([9, 10], "stop", stop=("</mem>",)).stop is GenerationStop.STOP_STRING
    assert says([9, 10], "length").stop is GenerationStop.LENGTH


def test_a_cut_distribution_leaves_no_logprobs() -> None:
    assert says([9, 10], top_k=3).logprobs == ()
    assert says([9, 10], top_p=0.9).logprobs == ()
    assert len(says([9, 10], temperature=0.5).logprobs) == 2


def test_parameters_in_vllms_words() -> None:
    policy = tiny_llama(TOKENIZER)
    engine = Engine(policy, [9])
    sampler_over(engine, policy)(
        PROMPTS,
        [
            SamplingParams(4, 0.7, 0.9, 5, ("</mem>",), seed=(1 << 64) - 1),
            SamplingParams(4),
            SamplingParams(4),
        ],
    )
    first, second, third = engine.params
    assert (first.max_tokens, first.temperature, first.top_p, first.top_k) == (4, 0.7, 0.9, 5)
    assert (first.stop, first.detokenize, second.detokenize) == (["</mem>"], True, False)
    assert (first.stop_token_ids, first.ignore_eos, first.skip_special_tokens) == ([TOKENIZER.eos_id], True, False)
    assert first.seed == LAST_SEED, "vLLM's seeds are signed"
    assert 0 <= second.seed != third.seed, "without a seed the noise is fresh"


def test_logprobs_that_are_no_numbers_are_said() -> None:
    policy = tiny_llama(TOKENIZER)
    engine = Engine(policy, [9])
    engine.logprob_shift = math.nan
    with pytest.raises(UserError, match="not finite numbers"):
        sampler_over(engine, policy)([(5,)], [SamplingParams(4)])


def test_a_request_that_exceeds_the_window_is_refused_before_vllm_sees_it() -> None:
    policy = tiny_llama(TOKENIZER)
    engine = Engine(policy)
    with pytest.raises(UserError, match=r"prompt of 60 tokens and a reply of up to 5 exceed the 64"):
        sampler_over(engine, policy)([[5] * 60], [SamplingParams(5)])
    assert engine.does == []


def test_what_vllm_raises_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tiny_llama(TOKENIZER)
    engine = Engine(policy)

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("engine died\nwith a traceback")

    monkeypatch.setattr(engine, "generate", broken)
    with pytest.raises(UserError, match=r"^vLLM failed while generating \(RuntimeError: engine died\)"):
        sampler_over(engine, policy)([(5,)], [SamplingParams(4)])


# --- weights -------------------------------------------------------------------------------------------------------


def test_weights_are_renewed_once_for_every_version() -> None:
    policy = tiny_llama(TOKENIZER)
    engine = Engine(policy)
    sampler = sampler_over(engine, policy)
    greedy = [SamplingParams(4, temperature=0)]
    for _ in range(2):
        sampler(PROMPTS[:1], greedy)
    renewal = ["reload_weights", "reset_prefix_cache", "generate"]
    assert engine.does == [*renewal, "generate"]
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1.5)
    policy.version += 1
    (made,) = sampler(PROMPTS[:1], greedy)
    assert engine.does == [*renewal, "generate", *renewal]
    (expected,) = generate_batch(policy, PROMPTS[:1], greedy)
    np.testing.assert_allclose(made.logprobs, expected.logprobs, rtol=0, atol=1e-5)


def test_weights_that_do_not_arrive_are_named_and_sent_again() -> None:
    policy = tiny_llama(TOKENIZER)
    engine = Engine(policy)
    engine.loses = "model.layers.1.mlp.up_proj.weight"
    sampler = sampler_over(engine, policy)
    with pytest.raises(UserError, match=r"in 1 of 3 parts \(layer 1\)"):
        sampler(PROMPTS[:1], [SamplingParams(4)])
    assert "generate" not in engine.does
    engine.loses = None
    sampler(PROMPTS[:1], [SamplingParams(4)])
    assert engine.does.count("reload_weights") == 2


def test_the_check_can_be_switched_off() -> None:
    policy = tiny_llama(TOKENIZER)
    engine = Engine(policy, [9])
    engine.loses = "model.layers.1.mlp.up_proj.weight"
    sampler = sampler_over(engine, policy, check_weights=False)
    with pytest.warns(UserWarning, match="differ by"):
        assert sampler(PROMPTS[:1], [SamplingParams(4)])[0].ids == (9,)


def test_keys_and_values_that_stay_are_said() -> None:
    policy = tiny_llama(TOKENIZER)
    engine = Engine(policy)
    engine.reset_prefix_cache = lambda: False  # type: ignore[method-assign]
    with pytest.raises(UserError, match="does not forget"):
        sampler_over(engine, policy)(PROMPTS[:1], [SamplingParams(4)])


def test_the_gap_of_logprobs_is_measured_after_each_renewal() -> None:
    policy = tiny_llama(TOKENIZER)
    engine = Engine(policy)
    sampler = sampler_over(engine, policy)
    batching = BatchingSampler(sampler)
    assert sampler.logp_gap is None
    assert measures_of(batching) == {"sampler/logp_gap": None}
    sampler(PROMPTS, [SamplingParams(4, temperature=0.7)] * 3)
    assert sampler.logp_gap is not None
    assert sampler.logp_gap < 1e-5
    engine.logprob_shift = 0.25
    policy.version += 1
    with pytest.warns(UserWarning, match=r"differ by 0\.250 a token"):
        sampler(PROMPTS, [SamplingParams(4, temperature=0.7)] * 3)
    assert sampler.logp_gap == pytest.approx(0.25, abs=1e-4)
    assert measures_of(batching) == {"sampler/logp_gap": sampler.logp_gap}
    assert measures_of(BatchingSampler(lambda prompts, sampling: [])) == {}
    engine.logprob_shift = 0.75
    policy.version += 1
    with pytest.raises(UserError, match=r"differ by 0\.750 a token on the same weights: vLLM does not compute"):
        sampler(PROMPTS, [SamplingParams(4, temperature=0.7)] * 3)


# --- starting ------------------------------------------------------------------------------------------------------


def test_vllm_starts_from_the_shape_alone(stub: Any) -> None:
    policy = tiny_llama(TOKENIZER)
    asked: dict[str, Any] = {}

    def llm(**given: Any) -> str:
        asked.update(given, files={file.name for file in Path(given["model"]).iterdir()})
        return "engine"

    stub.LLM = llm
    settings = SamplerSettings(engine="vllm", gpu_memory_fraction=0.4, kv_cache_mib=3, compile=False, dtype="bfloat16")
    assert start_engine(policy, settings, 128) == "engine"
    assert {"config.json", "tokenizer.json"} <= asked["files"]
    assert not any(name.endswith(".safetensors") for name in asked["files"]), "weights go another way"
    assert not Path(asked["model"]).exists()
    assert (asked["max_model_len"], asked["gpu_memory_utilization"], asked["dtype"]) == (128, 0.4, "bfloat16")
    assert (asked["kv_cache_memory_bytes"], asked["enforce_eager"]) == (3 * 2**20, True)
    assert asked["logprobs_mode"] == "processed_logprobs"
    start_engine(policy, SETTINGS, 128)
    assert (asked["dtype"], asked["kv_cache_memory_bytes"], asked["enforce_eager"]) == ("float32", None, False)


def test_a_start_that_fails_names_what_may_help(stub: Any) -> None:
    def llm(**_: Any) -> None:
        raise ValueError("Free memory is less than desired\nmore")

    stub.LLM = llm
    with pytest.raises(UserError, match=r"starting \(ValueError: Free memory is less than desired\); .*now 0\.3"):
        start_engine(tiny_llama(TOKENIZER), SETTINGS, 128)


def test_vllm_that_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'mempo\[vllm\]', or set sampler\.engine=local"):
        require_vllm()
    config = resolve("quickstart", ["sampler.engine=vllm"]).config
    policy = tiny_llama(TOKENIZER)
    with pytest.raises(UserError, match="vLLM is not installed"):
        make_sampler(config, policy, SharedForward(policy))
