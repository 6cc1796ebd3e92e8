"""The page of what was tried names tests that exist, and every row of it names one."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "reliability.md").read_text("utf-8")
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| kind |")]


def defined(file: Path) -> set[str]:
    """Names of the test functions of a file."""
    return set(re.findall(r"^\s*(?:async )?def (test_\w+)\(", file.read_text("utf-8"), re.MULTILINE))


def test_every_row_names_a_test() -> None:
    assert len(ROWS) > 100
    assert [row for row in ROWS if not NAMED.search(row)] == []


def test_every_test_that_is_named_exists() -> None:
    named = NAMED.findall(PAGE)
    assert len(named) == PAGE.count("::")  # nothing is spelt in a way that the check does not see
    there = {path: defined(ROOT / path) if (ROOT / path).is_file() else set[str]() for path, _ in named}
    assert [f"{path}::{name}" for path, name in named if name not in there[path]] == []


def test_the_check_itself_sees_a_function_that_is_not_there() -> None:
    here = defined(Path(__file__))
    assert "test_every_row_names_a_test" in here
    assert "test_of_nothing" not in here
