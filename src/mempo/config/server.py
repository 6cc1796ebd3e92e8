"""Settings of a model behind a server that speaks OpenAI's protocol."""

from __future__ import annotations

from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from mempo.config.addresses import server_address
from mempo.config.base import Settings
from mempo.config.tools import RetrySettings

OWN_FIELDS = frozenset(
    {
        *("model", "prompt", "messages", "max_tokens", "max_completion_tokens", "stop", "stream", "n", "best_of"),
        *("temperature", "top_p", "top_k", "min_p", "seed", "echo", "logprobs", "top_logprobs"),
        *("include_stop_str_in_output", "return_token_ids", "skip_special_tokens"),
    }
)
"""Fields of a request that mempo writes itself."""


class ServerSettings(Settings):
    """Where a model is served and how it is asked. The key is never a setting: it stays out of run folders."""

    url: str = Field(min_length=1)
    """`http://host:port`, with or without `/v1`; a path in front of `/v1` is kept."""
    model: str | None = Field(default=None, min_length=1)
    """The name the server knows the model by; None: the only one it lists."""
    tokenizer: str | None = Field(default=None, min_length=1)
    """A folder or hub name with the tokenizer of the served model, or `bytes` (one token a byte: every limit and cost
    in tokens then counts bytes). None: that of `model`, where that is a folder or hub name."""
    api: Literal["auto", "completions", "chat"] = "auto"
    """`auto` uses completions if the server has them, because only those continue a prompt exactly as it is."""
    key_variable: str = Field(default="OPENAI_API_KEY", min_length=1)
    """The environment variable with the key; if it is not set, requests have no key."""
    timeout_s: float = Field(default=300.0, gt=0, allow_inf_nan=False)
    """Seconds of one try, the whole reply included; waiting for a free connection does not count."""
    max_concurrent: int = Field(default=64, ge=1)
    """Requests under way at once."""
    retry: RetrySettings = RetrySettings(tries=5, backoff_s=0.5, max_backoff_s=60.0)
    """For busy servers (429, 5xx), broken connections and replies that are not JSON."""
    extra: dict[str, Any] = Field(default_factory=dict)
    """More fields for every request, such as `chat_template_kwargs`."""

    @field_validator("url")
    @classmethod
    def _usable_url(cls, value: str) -> str:
        base_url(value)
        return value

    @field_validator("extra")
    @classmethod
    def _not_ours(cls, value: dict[str, Any]) -> dict[str, Any]:
        ours = sorted(OWN_FIELDS & value.keys())
        if ours:
            raise ValueError(f"server.extra holds {ours[0]!r}, which mempo writes itself; leave it out")
        return value


class JudgeSettings(Settings):
    """A model that says whether answers are right; it needs no tokenizer."""

    server: ServerSettings
    max_new_tokens: int = Field(default=512, ge=1)
    """Of one verdict; models that think first need more than the dozen it takes."""
    max_answer_chars: int = Field(default=2000, ge=1)
    """A longer answer is cut before it is shown."""


def base_url(url: str) -> str:
    """The address that `/completions` is put behind: it ends in `/v1` unless the url names another version.

    Raises:
        ValueError: no address, or one that holds a password or a query, which would be written into run folders.
    """
    text = server_address(url, "model server", "http://127.0.0.1:8000", "that server.key_variable names")
    for ending in ("/chat/completions", "/completions", "/models"):
        text = text.removesuffix(ending)
    last = urlsplit(text).path.rsplit("/", 1)[-1]
    return text if last[:1] == "v" and last[1:2].isdigit() else f"{text}/v1"
