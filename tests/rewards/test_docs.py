"""The worked example of the documentation is computed by the code."""

from __future__ import annotations

import doctest
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_example_in_the_page_is_true() -> None:
    result = doctest.testfile(str(DOCS / "memory-signal.md"), module_relative=False)
    assert result.attempted >= 5
    assert result.failed == 0
