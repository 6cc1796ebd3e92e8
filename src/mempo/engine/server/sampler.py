"""A policy behind an OpenAI-compatible server, as a `Sampler`: ids in, ids out, as the engine in this process has it.

Replies are text on most servers, so their ids are made here, by `server.tokenizer`: good for evaluation, where a turn
is what it says; never for training. Log-probs are given only where they belong to the very ids of the generation, at
the sampling temperature; else there are none.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from mempo.engine.server.capabilities import PATHS, Capabilities
from mempo.engine.server.client import OpenAIClient
from mempo.engine.server.prompt import PromptText
from mempo.engine.server.reply import ServerReply, read_reply
from mempo.engine.server.stop_reason import completed, ending, inferred_stop
from mempo.engine.stop import watched
from mempo.errors import UserError
from mempo.http.errors import HttpError
from mempo.rollout.interfaces import Generation, SamplerError, SamplingParams
from mempo.rollout.protocol import TAGS
from mempo.rollout.tokenizer import Tokenizer
from mempo.rollout.trajectory import GenerationStop

_MOST_CHARS = 64
"""Characters a token, on average over a reply: no language and no code comes near it."""
_MORE_TOKENS = 4
"""So many times the limit a reply may have in tokens of ours, where the server counts its own."""


class OpenAISampler:
    """Many rollouts may ask at once, from any event loop. `system`: the system prompt, which chat sends by itself.

    `own_tokens`: the tokenizer is not the model's (`bytes`), so its special tokens mean nothing to the server.
    """

    def __init__(
        self,
        client: OpenAIClient,
        tokenizer: Tokenizer,
        capabilities: Capabilities,
        system: str = "",
        own_tokens: bool = False,
    ) -> None:
        self.capabilities = capabilities
        self._client, self._tokenizer, self._system = client, tokenizer, system
        self._prompt = PromptText(tokenizer, keep_special=capabilities.api == "completions" and not own_tokens)
        self._counts: Counter[str] = Counter()
        ends = sorted({tokenizer.decode([i]).strip() for i in tokenizer.eos_ids} - {""})
        self._eos_texts = () if own_tokens else tuple(ends)

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> Generation:
        """Raises SamplerError when this reply failed for good; UserError when every other one will, too."""
        body = self._body(prompt_ids, sampling)
        api = self.capabilities.api
        try:
            reply = await self._client.post(PATHS[api], body, lambda found: read_reply(found, api))
        except HttpError as error:
            if error.is_denied:
                raise UserError(f"{error}; is the key in {self._client.settings.key_variable} right?") from error
            raise SamplerError(str(error)) from error
        generation = self._from_ids(reply, sampling) or self._from_text(reply, sampling)
        self._counts["replies"] += 1
        self._counts["without_logprobs"] += not generation.logprobs
        return generation

    def counts(self) -> dict[str, int]:
        """Requests (tries), retries, requests that failed for good, replies, and how many of these have no log-probs,
        or ids that were made here."""
        names = ("requests", "retries", "failed", "replies", "without_logprobs", "tokenized_again")
        both = self._client.counts + self._counts
        return {name: both[name] for name in names}

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> OpenAISampler:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- requests --------------------------------------------------------------------------------------------------

    def _body(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> dict[str, Any]:
        can = self.capabilities
        body: dict[str, Any] = {"model": can.model, can.length_field: sampling.max_new_tokens}
        if can.api == "chat":
            body["messages"] = self._prompt.messages(prompt_ids, self._system)
        else:
            body["prompt"] = list(prompt_ids) if can.token_prompts else self._prompt.text(prompt_ids)
        if can.takes_temperature:
            body["temperature"] = sampling.temperature
        elif sampling.temperature != 1:
            raise UserError(f"{can.model} at {can.url} takes no temperature; set evaluate.temperature=1")
        # Left out, many servers take values of their own or the model's, such as top_k 40 or min_p 0.05.
        optional: dict[str, tuple[Any, bool]] = {
            "top_p": (sampling.top_p, sampling.top_p < 1),
            "top_k": (sampling.top_k or -1, sampling.top_k > 0),
            "min_p": (0.0, False),
            "skip_special_tokens": (False, False),
            "return_token_ids": (True, False),
            "seed": (None if sampling.seed is None else sampling.seed % 2**31, False),
        }
        for name, (value, needed) in optional.items():
            if name in can.accepts and value is not None:
                body[name] = value
            elif needed:
                raise UserError(f"the server at {can.url} takes no {name}; leave evaluate.{name} at its default")
        if can.logprobs != "none" or (can.returns_ids and "logprobs" in can.accepts):
            body["logprobs"] = True if can.api == "chat" else 1
        if sampling.stop:
            body["stop"] = list(sampling.stop)
            if can.keeps_stop_if_asked:
                body["include_stop_str_in_output"] = True
        return body

    # --- replies ---------------------------------------------------------------------------------------------------

    def _from_ids(self, reply: ServerReply, sampling: SamplingParams) -> Generation | None:
        """The server's own ids, read as the engine reads what it samples; None where there are none, or where they do
        not end as the server says, so that they are not those of the reply or not of this tokenizer."""
        ids = reply.token_ids
        if not self.capabilities.returns_ids or ids is None or max(ids) >= self._tokenizer.size:
            return None
        if len(ids) > _MORE_TOKENS * sampling.max_new_tokens:
            return None
        if self.capabilities.api == "chat" and not reply.text:  # ids of a thought that the server took out
            return None
        values = reply.token_logprobs if len(reply.token_logprobs) == len(ids) else (0.0,) * len(ids)
        watcher = watched(self._tokenizer, sampling, ids, values)
        generation = watcher.generation()
        shown = self._tokenizer.decode(ids)
        if not shown.startswith(reply.text.removesuffix("\ufffd")):
            return None
        if watcher.stop is None and reply.finish_reason != "length":
            return None
        known = reply.token_logprobs and len(reply.token_logprobs) == len(ids) and _is_policy_scale(sampling)
        return generation if known else Generation(generation.ids, (), generation.stop)

    def _from_text(self, reply: ServerReply, sampling: SamplingParams) -> Generation:
        reply = bounded(reply, _MOST_CHARS * sampling.max_new_tokens)
        names_stops = self.capabilities.stop_field is not None
        text, stop = ending(reply, sampling.stop, names_stops, self._is_full(reply, sampling), self._eos_texts)
        ids = self._ids_of(text, reply, sampling.stop)
        if stop is GenerationStop.EOS:
            ids += (self._tokenizer.eos_id,)
        told = reply.completion_tokens
        # A server that counts other tokens may fit more of ours into the limit.
        counts_others = told is not None and told <= sampling.max_new_tokens
        most = sampling.max_new_tokens * (_MORE_TOKENS if counts_others else 1)
        if len(ids) > most:
            # A server that ignores the limit: what lies beyond it was never asked for.
            ids, stop = ids[:most], GenerationStop.LENGTH
        return Generation(ids, self._logprobs_of(ids, stop, reply, sampling), stop)

    def _is_full(self, reply: ServerReply, sampling: SamplingParams) -> bool:
        """Whether the reply has reached its token limit, or the model's window. Where the server does not count, the
        tokens of its text are counted here; a stop string that was removed would have to fit in as well."""
        told, window = reply.completion_tokens, self.capabilities.window_tokens
        if not told:
            stop = inferred_stop(reply.text, sampling.stop) or ""
            whole = encode_reply(self._tokenizer, completed(reply.text, stop), sampling.stop)
            return len(whole) > sampling.max_new_tokens
        in_window = window is None or reply.prompt_tokens is None or told + reply.prompt_tokens < window
        return told >= sampling.max_new_tokens or not in_window

    def _ids_of(self, text: str, reply: ServerReply, stops: Sequence[str]) -> tuple[int, ...]:
        """The server's ids of what it showed, where it gave them, and ours of the stop string that it removed; else the
        whole text tokenized again."""
        told = reply.token_ids
        if self.capabilities.returns_ids and told is not None and max(told) < self._tokenizer.size:
            removed = text.removeprefix(reply.text)
            if (removed == "" or removed in stops) and self._tokenizer.decode(told) == reply.text:
                return told + encode_reply(self._tokenizer, removed, stops)
        self._counts["tokenized_again"] += 1
        return encode_reply(self._tokenizer, text, stops)

    def _logprobs_of(
        self, ids: tuple[int, ...], stop: GenerationStop, reply: ServerReply, sampling: SamplingParams
    ) -> tuple[float, ...]:
        """The server's, if its tokens are ours, one by one."""
        if not _is_policy_scale(sampling) or len(reply.token_logprobs) < len(ids):
            return ()
        shown = ids[:-1] if stop is GenerationStop.EOS else ids
        ours = [self._tokenizer.piece(i, first=k == 0) for k, i in enumerate(shown)]
        return reply.token_logprobs[: len(ids)] if ours == list(reply.token_texts[: len(shown)]) else ()


def bounded(reply: ServerReply, most_chars: int) -> ServerReply:
    """The reply, or the beginning of one that no model could have written within the limit."""
    if len(reply.text) <= most_chars:
        return reply
    return replace(reply, text=reply.text[:most_chars], finish_reason="length", named_stop=None, stop_token=None)


def _is_policy_scale(sampling: SamplingParams) -> bool:
    """Servers give log-probs before temperature; ours are those after it, so they agree at 1 (and for greedy)."""
    return sampling.temperature in (0, 1)


def encode_reply(tokenizer: Tokenizer, text: str, stops: Sequence[str]) -> tuple[int, ...]:
    """Ids of a reply. Tags of the turn language may be tokens of their own; nothing else a server says may be special.

    The end of the reply's own tag is in `stops`, also where an environment brought it.
    """
    pieces = _tag_pattern(tuple(stops)).split(text)
    return tokenizer.mixed_ids([(piece, k % 2 == 1) for k, piece in enumerate(pieces) if piece])


@cache
def _tag_pattern(stops: tuple[str, ...]) -> re.Pattern[str]:
    own = [stop[2:-1] for stop in stops if re.fullmatch(r"</[a-z][a-z0-9_]*>", stop)]
    tags = "|".join(map(re.escape, dict.fromkeys((*TAGS, *own))))
    return re.compile(f"(</?(?:{tags})>)")
