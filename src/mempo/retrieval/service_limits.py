"""What one request, and all that wait together, may ask of the service."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from mempo.settings import Settings


class ServiceSettings(Settings):
    """Settings of `mempo serve`.

    A request over a limit is refused whole, and public clients send a whole batch of rollouts as one request: the
    limits stand where only a mistake or an attack reaches them.
    """

    default_top_k: int = Field(default=3, ge=1)
    """Passages per query when a request's `topk` is null or absent."""
    max_top_k: int = Field(default=1000, ge=1)
    max_queries: int = Field(default=8192, ge=1)
    """Queries, or urls, of one request."""
    max_passages: int = Field(default=200_000, ge=1)
    """Passages that one request asks for: queries times top k."""
    max_query_chars: int = Field(default=65_536, ge=1)
    """Characters of one query or url."""
    max_body_bytes: int = Field(default=16 << 20, ge=1)
    body_timeout_s: float = Field(default=30.0, gt=0)
    """Seconds within which the head of a request must have arrived, and then its body."""
    max_connections: int = Field(default=1000, ge=1)
    """Open connections of one worker; more are refused with status 503. Each takes a file descriptor."""
    max_batch_queries: int = Field(default=64, ge=1)
    """Queries, of one or several requests, that the index is asked at once. `mempo serve` takes 8 for a lexical index
    unless told otherwise: more gain it nothing, and while it works on a few, the clients of the others ask again."""
    max_waiting_queries: int = Field(default=16_384, ge=1)
    """Queries that wait for the index; what comes on top is refused with status 503 and Retry-After."""
    max_wait_s: float = Field(default=60.0, gt=0)
    """Whatever has waited longer is refused with status 503: most clients have given up by then."""
    cache_mib: float = Field(default=64.0, ge=0)
    """Memory for answers to queries that were asked before, in MiB per worker; 0 keeps none."""
    drain_s: float = Field(default=30.0, gt=0)
    """Seconds that requests under way are given to end when the service is told to stop."""

    @model_validator(mode="after")
    def _room_for_one(self) -> ServiceSettings:
        if self.max_waiting_queries < self.max_queries:
            raise ValueError(
                f"max_waiting_queries {self.max_waiting_queries} has no room for one request of max_queries "
                f"{self.max_queries}; raise the one or lower the other"
            )
        if self.default_top_k > self.max_top_k:
            raise ValueError(f"default_top_k {self.default_top_k} is above max_top_k {self.max_top_k}")
        return self


class RefusedRequest(Exception):
    """A request that gets no answer. `status` and `error` are the reply's; see `error_body`."""

    def __init__(self, status: int, kind: str, message: str, retry_after_s: int | None = None, **facts: Any) -> None:
        super().__init__(message)
        self.status = status
        self.error = {"kind": kind, "message": message, **facts}
        self.retry_after_s = retry_after_s


def over_limit(status: int, limit: str, given: int | None, allowed: int) -> RefusedRequest:
    """`given` is None when nobody counted to the end."""
    so_many = "more" if given is None else str(given)
    message = f"{limit} is {allowed}, the request has {so_many}"
    return RefusedRequest(status, "limit", message, limit=limit, given=given, allowed=allowed)
