"""Addresses as users write them, and what must never come into a run folder."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from mempo.config.server import ServerSettings, base_url


@pytest.mark.parametrize(
    ("written", "asked"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000/v1"),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000/v1"),
        (" http://host:8000/v1/ ", "http://host:8000/v1"),
        ("https://host/v1/completions", "https://host/v1"),
        ("https://host/v1/chat/completions", "https://host/v1"),
        ("https://host/openai/v2beta", "https://host/openai/v2beta"),
        ("https://host/vendor", "https://host/vendor/v1"),
        ("http://[::1]:8000", "http://[::1]:8000/v1"),
    ],
)
def test_an_address_is_taken_as_it_is_meant(written: str, asked: str) -> None:
    assert base_url(written) == asked


@pytest.mark.parametrize("url", ["host:8000", "ftp://host", "http://", "http://host:0", "http://ho st", "http://höst"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValidationError, match="not an address of a server"):
        ServerSettings(url=url)


@pytest.mark.parametrize("field", ["prompt", "max_tokens", "stop", "logprobs"])
def test_extra_fields_are_not_ours(field: str) -> None:
    with pytest.raises(ValidationError, match=f"{field}.*mempo writes itself"):
        ServerSettings(url="http://host", extra={field: 1})
    assert ServerSettings(url="http://host", extra={"priority": 1}).extra == {"priority": 1}


@pytest.mark.parametrize("wrong", [{"timeout_s": 0}, {"max_concurrent": 0}, {"key": "secret"}, {"model": ""}])
def test_settings_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ServerSettings.model_validate({"url": "http://host", **wrong})
