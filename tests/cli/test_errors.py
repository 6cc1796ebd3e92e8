"""Words of error messages."""

from __future__ import annotations

from mempo.errors import counted


def test_one_is_no_plural() -> None:
    assert [counted(n, "objective") for n in (0, 1, 2)] == ["0 objectives", "1 objective", "2 objectives"]
