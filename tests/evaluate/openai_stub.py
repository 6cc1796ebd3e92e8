"""A model server behind a real socket that behaves as each family of them does, and fails in the ways servers do."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.responses import StreamingResponse

from mempo.engine.server.capabilities import PROBE_TEXT, SEED_TEXT
from mempo.rollout.tokenizer import Tokenizer
from tests.retrieval.serving import serving

KNOWN = frozenset({"model", "prompt", "messages", "max_tokens", "temperature", "top_p", "stop", "seed", "logprobs"})
COUNTING = " 9, 10, 11, 12, 13, 14, 15, 16, 17, 18"
"""What the model says to the text of the probe."""


@dataclass(frozen=True)
class Family:
    """How a server behaves; see the three below."""

    completions: bool = True
    token_prompts: bool = True
    keeps_stop: bool = False
    names_stop: str | None = None
    logprobs: str | None = None  # legacy | chat
    refuses_unknown: bool = False
    obeys_include_stop: bool = False
    returns_ids: bool = False
    counts: bool = True
    newer_chat: bool = False  # takes max_completion_tokens, and no temperature


LLAMA = Family(logprobs="chat")
TRANSFORMERS = Family(token_prompts=False, keeps_stop=True, refuses_unknown=True)
VLLM = Family(names_stop="stop_reason", logprobs="legacy", obeys_include_stop=True, returns_ids=True)
SGLANG = Family(names_stop="matched_stop")
CHAT = Family(completions=False, refuses_unknown=True)
NEWER_CHAT = Family(completions=False, refuses_unknown=True, newer_chat=True)
FAMILIES = {
    "llama": LLAMA,
    "transformers": TRANSFORMERS,
    "vllm": VLLM,
    "sglang": SGLANG,
    "chat": CHAT,
    "newer_chat": NEWER_CHAT,
}


@dataclass
class Stub:
    """`say` gives the whole reply to a prompt, which stop strings and the limit then end; a text that does not end in
    `<eos>` would go on. `fault`: a reply in place of it, by the number of the request."""

    tokenizer: Tokenizer
    family: Family = VLLM
    say: Callable[[str], str] = lambda prompt: "<eos>"
    fault: Callable[[int], Response | None] = lambda number: None
    models: tuple[str, ...] = ("the-model",)
    key: str | None = None
    delay_s: float = 0.0
    seeds_matter: bool = True
    bodies: list[dict[str, Any]] = field(default_factory=list)
    under_way: int = 0
    most_under_way: int = 0
    url: str = ""

    def app(self) -> FastAPI:
        app = FastAPI()

        @app.get("/v1/models")
        async def models(request: Request) -> Response:
            denied = self._denied(request)
            return denied or reply({"data": [{"id": name, "max_model_len": 512} for name in self.models]})

        @app.post("/v1/completions")
        async def completions(request: Request) -> Response:
            return await self._answer(request, chat=False)

        @app.post("/v1/chat/completions")
        async def chat(request: Request) -> Response:
            return await self._answer(request, chat=True)

        return app

    def _denied(self, request: Request) -> Response | None:
        sent = request.headers.get("authorization")
        if self.key is None or sent == f"Bearer {self.key}":
            return None
        return reply({"error": f"bad header {sent}"}, 401)

    async def _answer(self, request: Request, chat: bool) -> Response:
        self.bodies.append(body := await request.json())
        number = len(self.bodies) - 1
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            return self._denied(request) or self.fault(number) or self._reply(body, chat)
        finally:
            self.under_way -= 1

    def _reply(self, body: dict[str, Any], chat: bool) -> Response:
        family = self.family
        if not chat and not family.completions:
            return reply({"detail": "Not Found"}, 404)
        known = KNOWN | {"max_completion_tokens"} if family.newer_chat else KNOWN
        if family.refuses_unknown and (unknown := sorted(body.keys() - known)):
            return reply({"detail": f"Unexpected fields in the request: {unknown}"}, 422)
        if family.newer_chat and ("max_tokens" in body or "temperature" in body):
            return reply({"error": "Unsupported parameter"}, 400)
        limit = int(body.get("max_tokens") or body["max_completion_tokens"])
        if chat:
            text = "\n".join(message["content"] for message in body["messages"])
            prompt_tokens = 999  # with a template that nobody knows
        elif isinstance(body["prompt"], list):
            if not family.token_prompts:
                return reply({"detail": "prompt must be a string."}, 400)
            text, prompt_tokens = self.tokenizer.decode(body["prompt"]), len(body["prompt"])
        else:
            text, prompt_tokens = body["prompt"], len(self.tokenizer.encode_trusted(body["prompt"]))
        said = COUNTING if PROBE_TEXT in text else self.say(text)
        if SEED_TEXT in text:
            said = f"tree {body.get('seed', len(self.bodies)) if self.seeds_matter else 0}"
        return reply(self._completion(said, body, limit, prompt_tokens, chat))

    def _completion(
        self, said: str, body: dict[str, Any], limit: int, prompt_tokens: int, chat: bool
    ) -> dict[str, Any]:
        """Token by token, as a model would."""
        family, tokenizer = self.family, self.tokenizer
        ids: list[int] = []
        text, stop, finish = "", None, "length"
        for i in tokenizer.encode_trusted(said)[:limit]:
            ids.append(i)
            if i == tokenizer.eos_id:
                finish = "stop"
                break
            text = tokenizer.decode(ids)
            stop = next((s for s in body.get("stop") or () if s in text), None)
            if stop is not None:
                keep = family.keeps_stop or (family.obeys_include_stop and body.get("include_stop_str_in_output"))
                end = text.index(stop) + (len(stop) if keep else 0)
                text, finish = text[:end], "stop"
                break
        choice: dict[str, Any] = {"index": 0, "finish_reason": finish, "logprobs": None}
        choice |= {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        if family.names_stop and finish == "stop":
            choice[family.names_stop] = stop
        if family.returns_ids and body.get("return_token_ids"):
            choice["token_ids"] = ids
        shown = [i for k, i in enumerate(ids) if tokenizer.decode(ids[: k + 1]) in text and i != tokenizer.eos_id]
        values = [-0.25 - 0.01 * k for k in range(len(ids))]
        if body.get("logprobs") and family.logprobs == "legacy":
            choice["logprobs"] = {"tokens": [tokenizer.piece(i) for i in ids], "token_logprobs": values}
        elif body.get("logprobs") and family.logprobs == "chat":
            entries = [
                {"id": i, "token": tokenizer.piece(i), "logprob": v} for i, v in zip(shown, values, strict=False)
            ]
            choice["logprobs"] = {"content": entries}
        usage = {"usage": {"prompt_tokens": prompt_tokens, "completion_tokens": len(ids)}} if family.counts else {}
        return {"choices": [choice], **usage}


def reply(content: Any, status: int = 200, **headers: str) -> Response:
    return Response(json.dumps(content), status, headers, "application/json")


def raw(content: bytes, status: int = 200) -> Response:
    return Response(content, status)


def broken_off() -> Response:
    """A body that ends before its announced length."""

    async def parts() -> AsyncIterator[bytes]:
        yield b'{"choices": ['
        raise ConnectionResetError

    return StreamingResponse(parts(), headers={"content-length": "4000"})


class Hanging(Response):
    """Never answers while the test runs."""

    def __init__(self, released: threading.Event) -> None:
        super().__init__(b"")
        self._released = released

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        while not self._released.is_set():
            await asyncio.sleep(0.01)


@contextmanager
def stub_server(stub: Stub) -> Iterator[Stub]:
    with serving(stub.app()) as url:
        stub.url = url
        yield stub
