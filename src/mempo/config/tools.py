"""Settings of the tools, of the web behind them, and of asking again when they fail."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from mempo.config.addresses import is_http, refuse_credentials
from mempo.config.base import Settings


class RetrySettings(Settings):
    """How often a failing tool is asked again, and how long to wait."""

    tries: int = Field(default=5, ge=1)
    """Attempts in all, the first included."""
    backoff_s: float = Field(default=0.5, ge=0)
    """Wait before the second attempt; doubled each time."""
    max_backoff_s: float = Field(default=8.0, ge=0)
    """No wait is longer, whatever a server asks for."""


class WebApiSettings(Settings):
    """A service on the web that is asked with a key. The key itself is never a setting: it stays out of run folders."""

    timeout_s: float = Field(default=20.0, gt=0)
    """Seconds of one try, the whole reply included."""
    max_reply_bytes: int = Field(default=4 << 20, ge=1)
    """A longer reply is broken off."""

    @field_validator("endpoint", check_fields=False)
    @classmethod
    def _address_without_password(cls, value: str) -> str:
        refuse_credentials(value, "endpoint", "that key_variable names")
        if not is_http(value):
            raise ValueError(f"{value!r} is not an address; write it as https://host/path")
        return value


class WebSearchSettings(WebApiSettings):
    """The search engine behind `search.source=web`."""

    provider: str = "serper"
    """`serper`, for any service that speaks its JSON, or `package.module:factory` of a `SearchProvider`."""
    endpoint: str = "https://google.serper.dev/search"
    """The address that is asked."""
    key_variable: str = "SERPER_API_KEY"
    """The environment variable that holds the key."""


class WebPageSettings(WebApiSettings):
    """Where pages come from with `access.source=web`."""

    reader: str = "direct"
    """`direct` fetches the page from here; `api` asks a service that reads pages; or `package.module:factory` of a
    `PageReader`."""
    endpoint: str = "https://r.jina.ai/"
    """The service of `api`; the url is put behind it."""
    key_variable: str = "JINA_API_KEY"
    """The environment variable that holds its key; without a key the service is asked without one."""
    max_redirects: int = Field(default=5, ge=0)
    """Redirects that are followed, each checked like the first address."""
    ports: tuple[int, ...] = (80, 443)
    """Other ports are refused."""


class SearchSettings(Settings):
    """Settings of the search tool. The budget in tokens, `limits.max_obs_tokens`, is the loop's to keep."""

    source: Literal["corpus", "web"] = "corpus"
    """`corpus` searches what `data.*` names, in this process or behind a server; `web` asks a search engine."""
    top_k: int = Field(default=5, ge=1)
    """Passages that a search shows."""
    passage: str = "[{n}] {title}\n{text}"
    """How a passage is shown; `{n}`, `{title}`, `{text}` and `{url}` are filled in."""
    max_passage_chars: int = Field(default=5000, ge=1)
    """A longer passage is cut before it is tokenised."""
    max_concurrent: int = Field(default=32, ge=1)
    """Searches under way at once."""
    retry: RetrySettings = RetrySettings()
    web: WebSearchSettings = WebSearchSettings()

    @field_validator("passage")
    @classmethod
    def _known_fields(cls, value: str) -> str:
        try:
            value.format(n=1, title="", text="", url="")
        except (KeyError, IndexError, ValueError, AttributeError) as error:
            raise ValueError(
                f"passage {value!r} cannot be filled in ({type(error).__name__}: {error}); "
                "it may hold {n}, {title}, {text} and {url}"
            ) from error
        return value


class AccessSettings(Settings):
    """Settings of the page tool."""

    source: Literal["corpus", "web"] = "corpus"
    """`corpus` opens only urls of the corpus; `web` fetches from the live web what the policy asks for."""
    max_page_chars: int = Field(default=20_000, ge=1)
    """A longer page is cut before it is tokenised."""
    max_concurrent: int = Field(default=32, ge=1)
    """Pages under way at once."""
    retry: RetrySettings = RetrySettings()
    web: WebPageSettings = WebPageSettings()
