"""Settings of the questions and the corpus."""

from __future__ import annotations

from typing import Any

from pydantic import Field, ValidationInfo, field_validator

from mempo.config.addresses import server_address
from mempo.config.base import Settings
from mempo.config.retrieval import ClientSettings


class DataSettings(Settings):
    """Questions and corpus: an environment, or files of your own."""

    environment: str | None = None
    """`atlas`, `maze`, or `package.module:factory` that returns an `Environment`; called with `environment_options`."""
    environment_options: dict[str, Any] = Field(default_factory=dict)
    """Options of the environment, such as `{rendering: cards}` (docs/environments.md)."""
    train: str | None = None
    """A question file (see docs/data.md) to train on; only without an environment, or with one to act in."""
    test: str | None = None
    """A question file to evaluate on; only without an environment, or with one to act in."""
    corpus: str | None = None
    """A corpus file to build a BM25 index of; only without an environment, an index or a server."""
    index: str | None = None
    """An index folder made by `mempo index`."""
    server: str | None = None
    """Address of a retrieval server, `http://host:port`; its token, where it asks for one, is read from the
    environment (MEMPO_RETRIEVAL_TOKEN)."""
    client: ClientSettings = ClientSettings()
    objectives: tuple[int, ...] = (1,)
    """Numbers of objectives in training questions, with equally many questions of each; batches mix them."""
    test_objectives: tuple[int, ...] | None = None
    """Numbers of objectives in test questions; default: those of training."""
    train_questions: int = Field(default=2000, ge=1)
    """How many training questions are drawn from an environment."""
    where: dict[str, Any] = Field(default_factory=dict)
    """Take only questions whose rows have these values, such as `{level: hard, type: [bridge, comparison]}`; only
    for files."""
    skip_bad: bool = False
    """Leave broken rows of question files out, and count them, instead of refusing the file."""

    @field_validator("server")
    @classmethod
    def _address_without_password(cls, value: str | None) -> str | None:
        if value is not None:
            server_address(value, "retrieval server", "http://127.0.0.1:8013", "MEMPO_RETRIEVAL_TOKEN")
        return value

    @field_validator("objectives", "test_objectives", mode="before")
    @classmethod
    def _one_or_more(cls, value: Any, info: ValidationInfo) -> Any:
        values = value if value is None or isinstance(value, list | tuple) else [value]
        if values is not None and (not values or any(type(k) is not int or k < 1 for k in values)):
            raise ValueError(f"numbers of objectives are whole numbers from 1; write data.{info.field_name}=[2, 4]")
        return values
