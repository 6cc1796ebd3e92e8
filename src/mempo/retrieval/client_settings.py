"""Settings of the client of a retrieval server. Apart from the client, so that reading them loads no HTTP library."""

from __future__ import annotations

from pydantic import Field

from mempo.settings import Settings


class ClientSettings(Settings):
    """How a retrieval server is asked; how often it is asked again is each tool's own (`search.retry`)."""

    timeout_s: float = Field(default=30.0, gt=0)
    """Seconds of one try, from its first byte to the last of the reply."""
    max_concurrent: int = Field(default=64, ge=1)
    """Requests under way at once; more of them wait for their turn, which does not count as time-out."""
    max_reply_bytes: int = Field(default=256 << 20, ge=1)
    """A longer reply is broken off and counts as one of the wrong form."""
