"""Hundreds of kills: collected for `-m kill` alone (`make test-kill`)."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    wanted = config.option.markexpr == "kill"
    return None if wanted or not collection_path.name.startswith("test_") else True


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kills", type=int, default=60, help="how many in all")
    parser.addoption("--kill-seed", type=int, default=0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    from tests.kill.harness import TALLY

    for line in TALLY.lines() if TALLY.kills else ():
        terminalreporter.write_line(line)
