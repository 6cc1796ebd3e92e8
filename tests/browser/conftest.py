"""These tests need Chromium and its driver: they are collected for `-m browser` alone (`make test-browser`)."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    wanted = config.option.markexpr == "browser"
    return None if wanted or not collection_path.name.startswith("test_") else True
