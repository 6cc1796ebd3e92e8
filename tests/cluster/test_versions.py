"""The versions that the plug-in is made for."""

from __future__ import annotations

import pytest

from mempo.cluster import versions
from mempo.errors import UserError

RIGHT = {"verl": "0.9.1", "TransferQueue": "0.1.11", "transformers": "5.10.4"}


def beside(patch: pytest.MonkeyPatch, **found: str | None) -> list[str]:
    patch.setattr(versions, "installed", {**RIGHT, **found}.get)
    return versions.version_problems()


def test_exactly_these_versions_are_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert beside(monkeypatch) == []
    versions.require_versions()


@pytest.mark.parametrize("other", ["0.9.0", "0.9.2", "0.9.1.dev1", "1.0"])
def test_another_verl_is_refused_with_both_numbers(monkeypatch: pytest.MonkeyPatch, other: str) -> None:
    (problem,) = beside(monkeypatch, verl=other)
    assert f"verl is {other}" in problem
    assert "exactly 0.9.1" in problem
    with pytest.raises(UserError, match=r"mempo\[cluster\]"):
        versions.require_versions()


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ["not installed" in problem for problem in beside(monkeypatch, verl=None, TransferQueue=None)] == [True] * 2


@pytest.mark.parametrize(("found", "fine"), [("5.10.4", True), ("5.11.0", False), ("5.24.0", False), ("4.57.1", True)])
def test_transformers_must_stay_below(monkeypatch: pytest.MonkeyPatch, found: str, fine: bool) -> None:
    assert (beside(monkeypatch, transformers=found) == []) is fine
