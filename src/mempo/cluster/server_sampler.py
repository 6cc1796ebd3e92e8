"""verl's rollout servers as the sampler of our agent loop: token ids go in and come out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

from mempo.engine.stop import watched
from mempo.rollout.interfaces import Generation, SamplerError, SamplingParams
from mempo.rollout.tokenizer import Tokenizer
from mempo.rollout.trajectory import GenerationStop


class LLMClient(Protocol):
    """What is used of verl's `LLMServerClient`."""

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **more: Any
    ) -> Any: ...


class ServerSampler:
    """The sampler of one rollout. `request_id` keeps its turns on one server, which has their prefixes cached.

    `versions`: the global steps of the weights that sampled its turns; None where the server did not say.
    """

    def __init__(self, client: LLMClient, tokenizer: Tokenizer, request_id: str) -> None:
        self._client, self._tokenizer, self._request_id = client, tokenizer, request_id
        self.versions: list[int | None] = []

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> Generation:
        """Our own stop rule over what the server generated, which may be some tokens more.

        The seed of the request is not passed on: a server that seeds every request samples more slowly, and its noise
        is its own anyway.

        Raises:
            SamplerError: the server failed, gave up the request, or told log-probs that are none.
        """
        wanted: dict[str, Any] = {
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or -1,
            "stop": list(sampling.stop),
            "stop_token_ids": sorted(self._tokenizer.eos_ids),
            "logprobs": True,
            "skip_special_tokens": False,  # or vLLM overlooks stop strings that are special tokens
        }
        try:
            output = await self._client.generate(self._request_id, prompt_ids=list(prompt_ids), sampling_params=wanted)
        except Exception as error:  # Ray and both engines raise all kinds
            raise SamplerError(f"the rollout server failed ({_said(error)})") from error
        if output.stop_reason == "aborted" or not output.token_ids:
            raise SamplerError(f"the rollout server gave up the request ({output.stop_reason})")
        logprobs = output.log_probs or []
        if len(logprobs) != len(output.token_ids) or not all(map(math.isfinite, logprobs)):
            raise SamplerError(
                f"the rollout server told {len(logprobs)} log-probs for {len(output.token_ids)} tokens, or numbers "
                "that are not finite"
            )
        self.versions.append(output.extra_fields.get("global_steps"))
        watcher = watched(self._tokenizer, sampling, list(map(int, output.token_ids)), list(map(float, logprobs)))
        if watcher.stop is None and len(output.token_ids) < sampling.max_new_tokens:
            watcher.stop = GenerationStop.STOP_STRING  # it stopped by a rule of its own
        return watcher.generation()


def _said(error: Exception) -> str:
    """Ray hands an error of another process on with that process's traceback as its text, and the error as `cause`."""
    cause = getattr(error, "cause", None)
    told = cause if isinstance(cause, Exception) else error
    return " ".join(f"{type(told).__name__}: {told}".split())
