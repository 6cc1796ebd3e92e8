"""Files and modules that the pages name exist, and the picture of the layers is the one that is checked."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.test_layers import LAYERS

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "bench/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "examples").rglob("*.py")),
    *sorted((ROOT / "examples").rglob("*.yaml")),
]
FILE = re.compile(r"\b(?:src/mempo|tests|bench|examples|docs|scripts)/[\w./-]*\w")
MODULE = re.compile(r"\bmempo\.([a-z_]\w*(?:\.[a-z_]\w*)*)")


def is_module_or_inside_one(dotted: str) -> bool:
    """`mempo.train.rl` is there, and `mempo.train.rl.train_rl` is a name that the file holds."""
    parts = dotted.split(".")
    place = ROOT / "src" / "mempo" / Path(*parts)
    if place.is_dir() or place.with_suffix(".py").is_file():
        return True
    above = place.parent
    file = above.with_suffix(".py") if above.with_suffix(".py").is_file() else above / "__init__.py"
    return file.is_file() and re.search(rf"\b{parts[-1]}\b", file.read_text("utf-8")) is not None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_names_is_there(page: Path) -> None:
    text = page.read_text("utf-8")
    files = {name for name in FILE.findall(text) if not (ROOT / name).exists()}
    modules = {name for name in MODULE.findall(text) if not is_module_or_inside_one(name)}
    assert files == set()
    assert modules == set()


def test_the_table_of_layers_is_the_one_that_is_checked() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    rows = re.findall(r"^\| (\d+) \| `(\w+)(?:/|\.py)` \|", text, re.MULTILINE)
    shown = {(int(layer), folder) for layer, folder in rows}
    checked = {(height, folder) for height, folders in enumerate(LAYERS, 1) for folder in folders}
    assert shown == checked - {(len(LAYERS), "__main__")}


def test_the_check_itself_tells_names_apart() -> None:
    assert is_module_or_inside_one("train.rl")
    assert is_module_or_inside_one("train.rl.train_rl")
    assert is_module_or_inside_one("config")
    assert not is_module_or_inside_one("advantages")
    assert not is_module_or_inside_one("train.rl.of_nothing")
