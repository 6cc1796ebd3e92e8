"""These tests start servers and load a model: they are collected for `-m servers` alone (`make test-servers`)."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    wanted = config.option.markexpr == "servers"
    return None if wanted or not collection_path.name.startswith("test_") else True
