"""Settings of the tools that reach the live web. Apart from the tools, so that reading them loads no HTTP library."""

from __future__ import annotations

from pydantic import Field, field_validator

from mempo.addresses import is_http, refuse_credentials
from mempo.settings import Settings


class WebApiSettings(Settings):
    """A service on the web that is asked with a key. The key itself is never a setting: it stays out of run folders."""

    timeout_s: float = Field(default=20.0, gt=0)
    """Seconds of one try, the whole reply included."""
    max_reply_bytes: int = Field(default=4 << 20, ge=1)

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
    ports: tuple[int, ...] = (80, 443)
    """Other ports are refused."""
    content_types: tuple[str, ...] = ("text/html", "application/xhtml+xml", "text/plain")
    """Pages of other types are refused."""
    user_agent: str = "mempo"
