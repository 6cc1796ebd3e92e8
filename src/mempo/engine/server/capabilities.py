"""What a model server can do, found out once by asking it, before any rollout.

Servers of one protocol differ in everything that a turn depends on: whether a prompt may be token ids, what becomes of
the stop string, which fields they know (`422` for others, or silence), which shape log-probs have.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from mempo.engine.server.client import OpenAIClient
from mempo.engine.server.reply import Api, LogprobShape, ServerReply, read_reply
from mempo.errors import UserError
from mempo.http.errors import HttpError

PROBE_TEXT = "Zürich is a city. Now count: one, two, three, four, 5, 6, 7, 8,"
"""Short, with letters, digits and a character of two bytes, and anything goes on with it."""
PROBE_TOKENS = 16

SEED_TEXT = "A list of random words, no two alike:"
"""Hardly anything goes on with it in the same way twice."""
SEEDS = (1, 2, 3)

PATHS: dict[Api, str] = {"completions": "/completions", "chat": "/chat/completions"}

COMPLETION_EXTRAS: dict[str, Any] = {
    "seed": 1,
    "logprobs": 1,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "return_token_ids": True,
    "skip_special_tokens": False,
}
CHAT_EXTRAS: dict[str, Any] = {"seed": 1, "logprobs": True, "top_p": 1.0, "top_k": -1, "min_p": 0.0}
"""Fields that not every server takes, with the value that changes nothing."""

CHAT_FORMS: tuple[tuple[str, bool], ...] = (
    ("max_tokens", True),
    ("max_completion_tokens", True),
    ("max_completion_tokens", False),
)
"""Name of the token limit, and whether a temperature is taken, in the order they are tried."""

StopString = Literal["kept", "removed", "unknown"]


@dataclass(frozen=True)
class Capabilities:
    """Of one model on one server. `accepts`: fields of `COMPLETION_EXTRAS` that it took (perhaps to ignore them)."""

    url: str
    model: str
    api: Api
    accepts: frozenset[str] = frozenset()
    token_prompts: bool = False
    """Prompts go as token ids, exactly as the agent built them."""
    tokenizer_agrees: bool | None = None
    """Whether the server counts as many tokens in a text as we do; None: it does not tell."""
    returns_ids: bool = False
    """Replies come with their token ids; else their text is tokenized again here."""
    stop_string: StopString = "unknown"
    """What becomes of the stop string in the text of a reply."""
    keeps_stop_if_asked: bool = False
    """`include_stop_str_in_output` is known and obeyed."""
    stop_field: str | None = None
    """The field that names the stop string."""
    logprobs: LogprobShape = "none"
    length_field: str = "max_tokens"
    takes_temperature: bool = True
    window_tokens: int | None = None
    """The longest context, where the server says so."""
    seeds_differ: bool | None = None
    """Whether samples at temperature 1 differ with the seed; None: not found out."""

    @property
    def can_force(self) -> bool:
        """A turn can be made to begin with given text."""
        return self.api == "completions"

    def line(self) -> str:
        """Everything that changes what is measured, in one line."""
        prompts = "one user message" if self.api == "chat" else "token ids" if self.token_prompts else "text"
        stop = {"kept": "kept", "removed": "removed", "unknown": "unknown"}[self.stop_string]
        if self.stop_field:
            stop += f" and named ({self.stop_field})"
        elif self.keeps_stop_if_asked:
            stop += ", kept when asked"
        elif self.stop_string != "kept":
            stop += ", inferred from the open tag"
        ids = "the server's" if self.returns_ids else "tokenized again here"
        return (
            f"{self.model} at {self.url}: {self.api}; prompts as {prompts}; stop string {stop}; reply ids {ids}; "
            f"log-probs {self.logprobs}; takes {', '.join(sorted(self.accepts)) or 'no optional field'}; "
            + ("forced text works" if self.can_force else "a reply cannot be forced to begin with <mem>")
            + ("; samples do not differ with the seed" if self.seeds_differ is False else "")
        )

    def as_record(self) -> dict[str, Any]:
        """As plain data, for a run folder."""
        return {**dataclasses.asdict(self), "accepts": sorted(self.accepts), "can_force": self.can_force}


def find_model(client: OpenAIClient) -> tuple[str, int | None]:
    """The model to ask, and its window where the server tells.

    Raises:
        UserError: no server, a wrong key, several models and none chosen.
    """
    wanted = client.settings.model
    try:
        models = client.get_now("/models", lambda body: [m for m in body["data"] if isinstance(m.get("id"), str)])
    except HttpError as error:
        if wanted is None or error.status is None or error.is_denied:
            raise _told(client, error) from error
        return wanted, None
    except (KeyError, TypeError, AttributeError):
        models = []
    names = [model["id"] for model in models]
    if wanted is None:
        if len(names) != 1:
            listed = f"lists {len(names)} models ({', '.join(names[:8])})" if names else "lists no model"
            raise UserError(f"the server at {client.base} {listed}; choose one with server.model")
        wanted = names[0]
    return wanted, next((_window(model) for model in models if model["id"] == wanted), None)


def _window(model: Mapping[str, Any]) -> int | None:
    """As vLLM and SGLang (`max_model_len`) or llama.cpp (`meta.n_ctx`) tell it."""
    meta = model.get("meta")
    told = model.get("max_model_len") or (meta.get("n_ctx") if isinstance(meta, dict) else None)
    return told if type(told) is int and told > 0 else None


def probe(
    client: OpenAIClient,
    model: str,
    prompt_ids: Sequence[int] | None,
    window: int | None = None,
    order: Sequence[Api] = ("completions", "chat"),
) -> Capabilities:
    """Ask a handful of short questions. `prompt_ids`: `PROBE_TEXT` by our tokenizer; None where it is not the model's.
    `order`: what `server.api=auto` tries.

    Raises:
        UserError: the server cannot be used as `server.api` says; the message names what it answered.
    """
    api = client.settings.api
    failures: list[HttpError] = []
    for one in order if api == "auto" else (api,):
        try:
            return _Probe(client, Capabilities(client.base, model, one, window_tokens=window)).run(prompt_ids)
        except HttpError as error:
            if error.status is None or error.is_denied or error.transient:
                raise _told(client, error) from error
            failures.append(error)
    raise UserError("; ".join(str(error) for error in failures)) from failures[-1]


def with_seeds(client: OpenAIClient, found: Capabilities) -> Capabilities:
    """The capabilities, and whether samples differ with the seed. Raises UserError: the server stopped answering."""
    try:
        return replace(found, seeds_differ=_Probe(client, found).seeds_differ())
    except HttpError as error:
        raise _told(client, error) from error


def capability_notes(record: Mapping[str, Any]) -> list[str]:
    """What a reader of a table must know of the server that answered, a sentence each; `record` as `as_record` gives
    it, which `server.json` of an evaluation holds under `capabilities`."""
    if record.get("seeds_differ") is not False:
        return []
    return [
        f"{record.get('model')}: samples at temperature 1 did not differ with the seed, so several rollouts of a "
        "question are one and the same"
    ]


def _told(client: OpenAIClient, error: HttpError) -> UserError:
    hint = f"; put the key into the environment variable {client.settings.key_variable}" if error.is_denied else ""
    return UserError(f"{error}{hint}")


class _Probe:
    def __init__(self, client: OpenAIClient, first: Capabilities) -> None:
        self._client, self._found = client, first
        self._extras = COMPLETION_EXTRAS if first.api == "completions" else CHAT_EXTRAS

    def run(self, prompt_ids: Sequence[int] | None) -> Capabilities:
        base = self._first_reply()
        self._fields()
        self._stop_strings(base.text)
        if self._found.api == "completions" and prompt_ids is not None:
            self._token_ids(prompt_ids, base)
        if prompt_ids is None or self._found.tokenizer_agrees is False:
            # Its ids, and log-probs of them, mean nothing in another tokenizer.
            self._found = replace(self._found, returns_ids=False, logprobs="none")
        return self._found

    def seeds_differ(self) -> bool | None:
        seeds = [{"seed": seed} if "seed" in self._found.accepts else {} for seed in SEEDS]
        replies = [self._tried(SEED_TEXT, 1.0, **seed) for seed in seeds]
        texts = [reply.text for reply in replies if reply is not None]
        # A model that thinks first has not said anything yet.
        return len(set(texts)) > 1 if len(texts) > 1 and any(texts) else None

    def _ask(self, text: str = PROBE_TEXT, temperature: float = 0.0, **more: Any) -> ServerReply:
        found = self._found
        if found.api == "completions":
            body: dict[str, Any] = {"prompt": text}
        else:
            body = {"messages": [{"role": "user", "content": text}]}
        body = {"model": found.model, **body, found.length_field: PROBE_TOKENS, **more}
        if found.takes_temperature:
            body["temperature"] = temperature
        return self._client.post_now(PATHS[found.api], body, lambda reply: read_reply(reply, found.api))

    def _tried(self, text: str = PROBE_TEXT, temperature: float = 0.0, **more: Any) -> ServerReply | None:
        """None when the server refuses the request as it stands."""
        try:
            return self._ask(text, temperature, **more)
        except HttpError as error:
            if error.status is None or error.is_denied or (error.transient and error.status < 500):
                raise
            return None  # a refusal, or a server that trips over what it does not know

    def _first_reply(self) -> ServerReply:
        if self._found.api == "completions":
            return self._ask()
        *others, last = CHAT_FORMS
        for length_field, takes_temperature in (*others, last):
            self._found = replace(self._found, length_field=length_field, takes_temperature=takes_temperature)
            try:
                return self._ask()
            except HttpError as error:
                if error.status not in (400, 422) or (length_field, takes_temperature) == last:
                    raise
        raise AssertionError("unreachable: the last form raises")

    def _fields(self) -> None:
        """All optional fields at once, and one by one where that is refused."""
        together = self._tried(**self._extras)
        replies: Mapping[str, ServerReply | None] = (
            {name: self._tried(**{name: value}) for name, value in self._extras.items()}
            if together is None
            else dict.fromkeys(self._extras, together)
        )
        taken = {name: reply for name, reply in replies.items() if reply is not None}
        shapes = [reply.shape for name, reply in taken.items() if name == "logprobs"]
        ids = any(reply.token_ids for name, reply in taken.items() if name in ("return_token_ids", "logprobs"))
        self._found = replace(
            self._found, accepts=frozenset(taken), logprobs=shapes[0] if shapes else "none", returns_ids=ids
        )

    def _stop_strings(self, text: str) -> None:
        """Greedy decoding says the same again, so a word of the first reply is a stop string that will come."""
        stop = probe_stop(text)
        reply = None if stop is None else self._tried(stop=[stop])
        if stop is None or reply is None:
            return
        self._found = replace(
            self._found,
            stop_string=became_of_stop(reply.text, text, stop),
            stop_field=reply.stop_field if reply.named_stop == stop else None,
        )
        if self._found.stop_string != "kept":
            kept = self._tried(stop=[stop], include_stop_str_in_output=True)
            obeyed = kept is not None and kept.text.endswith(stop)
            self._found = replace(self._found, keeps_stop_if_asked=obeyed)

    def _token_ids(self, prompt_ids: Sequence[int], base: ServerReply) -> None:
        """Ids are sent only where the server counts as many of them in the text as we do."""
        agrees = None if base.prompt_tokens is None else base.prompt_tokens == len(prompt_ids)
        self._found = replace(self._found, tokenizer_agrees=agrees)
        reply = None if agrees is False else self._tried(prompt=list(prompt_ids))
        taken = reply is not None and reply.prompt_tokens in (None, len(prompt_ids))
        # A server that counts no tokens may have read the list as a text: then it goes on in another way.
        if taken and reply is not None and agrees is None:
            taken = reply.text == base.text
        self._found = replace(self._found, token_prompts=taken)


def probe_stop(text: str) -> str | None:
    """A word in the middle of the text, None when there is none that begins after its first characters."""
    words = [word for word in text.split() if text.find(word) > 0]
    return words[len(words) // 2] if words else None


def became_of_stop(reply: str, whole: str, stop: str) -> StopString:
    """Whether a reply that was ended by `stop` still holds it; unknown when it is not the beginning of `whole`."""
    before = whole[: whole.find(stop)]
    if reply == before + stop:
        return "kept"
    # Some servers keep the rest of the token that ended the stop string.
    if reply.startswith(before + stop):
        return "kept"
    return "removed" if reply.rstrip() == before.rstrip() else "unknown"
