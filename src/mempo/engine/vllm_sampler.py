"""Sampling with vLLM: a second copy of the policy that generates fast, renewed whenever the policy has changed."""

from __future__ import annotations

import math
import secrets
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from mempo.config.engine import SamplerSettings
from mempo.engine.policy import Policy
from mempo.engine.scorer import LocalScorer
from mempo.engine.stop import watched
from mempo.engine.vllm import said_by_vllm, start_engine, vllm_params
from mempo.engine.vllm_weights import (
    checkpoint_tensors,
    policy_digests,
    refuse_other_weights,
    tied_names,
    worker_digests,
    worker_lacks,
)
from mempo.errors import UserError
from mempo.rollout.interfaces import Generation, SamplingParams, ScoreRequest
from mempo.rollout.trajectory import GenerationStop

COMPARED_ROWS = 4
"""Generations of the first batch after a renewal that the policy itself scores."""
WIDE_GAP, WRONG_GAP = 0.1, 0.5
"""Mean differences of log-probs a token that rounding does not explain, and that no arithmetic does."""

Start = Callable[[Policy, SamplerSettings, int], Any]


class VllmSampler:
    """The blocking call that `BatchingSampler` works with, by vLLM's engine in this process.

    Ids, stops and log-probs mean what those of `generate_batch` do, but for two things. The noise is vLLM's: a request
    with a seed repeats where its logits do, and gives other samples than the local engine. And top-k and top-p leave no
    log-probs (`()`), since vLLM reports those of the cut distribution. The engine starts with the first call, on the
    thread that calls.
    """

    def __init__(
        self,
        policy: Policy,
        settings: SamplerSettings,
        window_tokens: int,
        scorer: LocalScorer | None = None,
        start: Start = start_engine,
    ) -> None:
        self._policy, self._settings, self._window, self._start = policy, settings, window_tokens, start
        self._scorer = scorer or LocalScorer(policy)
        self._engine: Any = None
        self._version: int | None = None
        self._warned = False
        self.logp_gap: float | None = None
        """Mean |log-prob by vLLM - log-prob by the policy| over the tokens of a few generations since the weights were
        last renewed; None before the first of them."""

    def __call__(self, prompts: Sequence[Sequence[int]], sampling: Sequence[SamplingParams]) -> list[Generation]:
        """Continue every prompt under the policy as it is now.

        Raises:
            UserError: vLLM does not start or fails, it holds other weights than the policy or computes something else
                with them, a request does not fit into the window, or log-probs are not finite numbers.
        """
        if not prompts:
            return []
        self._refuse_too_long(prompts, sampling)
        self.renew()
        seeds = [secrets.randbits(63) if one.seed is None else one.seed for one in sampling]
        with said_by_vllm("generating", "see its log (VLLM_LOGGING_LEVEL=INFO), or set sampler.engine=local"):
            params = vllm_params(sampling, seeds, sorted(self._policy.tokenizer.eos_ids))
            requests = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
            outputs = self._engine.generate(requests, params, use_tqdm=False)
        found = [self._generation(output.outputs[0], one) for output, one in zip(outputs, sampling, strict=True)]
        if self.logp_gap is None:
            self._compare(prompts, sampling, found)
        return found

    def measures(self) -> dict[str, float | None]:
        """For the run's metrics: `sampler/logp_gap`, None before anything was compared."""
        return {"sampler/logp_gap": self.logp_gap}

    def renew(self) -> None:
        """Bring vLLM's weights to the policy's version and forget what the old ones computed; nothing to do when they
        are there already.

        Raises:
            UserError: vLLM does not start, does not take the weights, or holds others afterwards.
        """
        if self._version == self._policy.version:
            return
        if self._engine is None:
            self._engine = self._start(self._policy, self._settings, self._window)
        self._version = None  # until it is done: a failed renewal leaves weights of no version
        tensors = checkpoint_tensors(self._policy)
        with said_by_vllm("taking over the weights", "set sampler.engine=local"):
            (lacking,) = self._engine.collective_rpc(worker_lacks, args=(tied_names(tensors),))
            weights = ((name, tensor) for name, tensor in tensors.items() if name not in lacking)
            self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
            if not self._engine.reset_prefix_cache():
                raise UserError("vLLM does not forget the keys and values of the old weights; set sampler.engine=local")
        if self._settings.check_weights:
            self._check(tensors)
        self._version, self.logp_gap = self._policy.version, None

    def _check(self, tensors: dict[str, torch.Tensor]) -> None:
        name = self._settings.dtype
        dtype = self._policy.model.dtype if name == "model" else getattr(torch, name)
        ours = policy_digests(tensors, dtype)
        with said_by_vllm("telling its weights", "set sampler.check_weights=false"):
            (theirs,) = self._engine.collective_rpc(worker_digests, args=(dtype,))
        refuse_other_weights(ours, theirs)

    def _refuse_too_long(self, prompts: Sequence[Sequence[int]], sampling: Sequence[SamplingParams]) -> None:
        for prompt, one in zip(prompts, sampling, strict=True):
            if len(prompt) + one.max_new_tokens > self._window:
                raise UserError(
                    f"a prompt of {len(prompt)} tokens and a reply of up to {one.max_new_tokens} exceed the "
                    f"{self._window} tokens that vLLM was started with; raise limits.max_context_tokens or lower "
                    "limits.max_turn_tokens"
                )

    def _generation(self, completion: Any, sampling: SamplingParams) -> Generation:
        told = zip(completion.token_ids, completion.logprobs, strict=True)
        logprobs = [known[token].logprob for token, known in told]
        watcher = watched(self._policy.tokenizer, sampling, completion.token_ids, logprobs)
        if watcher.stop is None and completion.finish_reason == "stop":
            watcher.stop = GenerationStop.STOP_STRING
        made = watcher.generation()
        if sampling.top_k or sampling.top_p < 1:
            return Generation(made.ids, (), made.stop)
        if not all(map(math.isfinite, made.logprobs)):
            raise UserError(
                "vLLM gives log-probs that are not finite numbers: the weights are damaged, or training diverged; go "
                "back to an earlier checkpoint, and lower rl.optim.lr if it was training"
            )
        return made

    def _compare(
        self, prompts: Sequence[Sequence[int]], sampling: Sequence[SamplingParams], found: Sequence[Generation]
    ) -> None:
        """Let the policy score a few of the generations; digests do not tell that weights lie in the wrong place."""
        chosen = [n for n, made in enumerate(found) if made.logprobs][:COMPARED_ROWS]
        gaps: list[float] = []
        for n in chosen:
            request = ScoreRequest(tuple(prompts[n]), found[n].ids)
            (ours,) = self._scorer.score([request], sampling[n].temperature or 1.0)
            gaps += [abs(a - b) for a, b in zip(found[n].logprobs, ours.tolist(), strict=True)]
        if not gaps:
            return
        self.logp_gap = sum(gaps) / len(gaps)
        said = f"log-probs by vLLM and by the policy differ by {self.logp_gap:.3f} a token on the same weights"
        if self.logp_gap > WRONG_GAP and self._settings.check_weights:
            raise UserError(f"{said}: vLLM does not compute what the policy does; set sampler.engine=local")
        if self.logp_gap > WIDE_GAP and not self._warned:
            self._warned = True
            warnings.warn(
                f"{said}, so the update takes its own policy for another one; bring sampler.dtype and model.dtype "
                "together, or set sampler.engine=local",
                stacklevel=2,
            )
