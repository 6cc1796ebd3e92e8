"""The layers of the package: a folder imports only from lower layers, and no files import each other in a circle."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

import mempo

SOURCE = Path(mempo.__file__).parent

LAYERS: list[set[str]] = [
    {"errors", "progress"},
    {"config"},
    {"rollout"},
    {"http", "storage"},
    {"engine", "retrieval", "rewards", "data"},
    {"envs", "tools"},
    {"train", "evaluate"},
    {"setup"},
    {"run"},
    {"cluster", "diagnose", "study", "view"},
    {"cli"},
    {"__main__"},
]
"""From the bottom to the top. Folders of one layer do not import each other."""
LAYER = {folder: height for height, folders in enumerate(LAYERS) for folder in folders}


def module_of(file: Path) -> str:
    """`mempo/storage/files.py` is the module `storage.files`, `mempo/envs/__init__.py` is `envs`."""
    return ".".join(file.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


FILES = {module_of(file): file for file in sorted(SOURCE.rglob("*.py")) if file != SOURCE / "__init__.py"}


def imports(tree: ast.AST, modules: set[str]) -> set[str]:
    """Modules of mempo that a file imports anywhere in it, inside functions and type-checking blocks too."""
    found: set[str] = set()
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative imports hide the folder"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            if name.startswith("mempo."):
                place = name.removeprefix("mempo.")
                found.add(place if place in modules else place.rpartition(".")[0])
    return found - {""}


@cache
def imported() -> dict[str, set[str]]:
    """By module, what it imports; read when a test asks, since collecting tests should cost nothing."""
    return {module: imports(ast.parse(file.read_text("utf-8")), set(FILES)) for module, file in FILES.items()}


def folder_of(module: str) -> str:
    return module.partition(".")[0]


def upward(module: str, imported: set[str]) -> list[str]:
    own = folder_of(module)
    others = sorted(other for other in imported if folder_of(other) != own)
    return [f"{module} imports {other}" for other in others if LAYER[folder_of(other)] >= LAYER[own]]


@pytest.mark.parametrize("folder", sorted({folder_of(module) for module in FILES}))
def test_a_folder_imports_only_from_lower_layers(folder: str) -> None:
    assert folder in LAYER, f"{folder} is new: give it a place in LAYERS"
    found = [line for module in FILES if folder_of(module) == folder for line in upward(module, imported()[module])]
    assert found == []


def test_every_folder_of_the_list_is_there() -> None:
    assert {folder_of(module) for module in FILES} == set(LAYER)
    assert len(LAYER) == sum(map(len, LAYERS))


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Files that lead back to themselves: what is left when files that import nothing left are taken away, and those
    that nothing left imports."""
    left = {name: set(targets) - {name} for name, targets in graph.items()}
    while True:
        ends = {name for name, targets in left.items() if not targets & left.keys()}
        used = set().union(*left.values()) if left else set()
        gone = ends | (left.keys() - used)
        if not gone:
            return [sorted(left)] if left else []
        left = {name: targets for name, targets in left.items() if name not in gone}


def test_no_files_import_each_other_in_a_circle() -> None:
    assert circles(imported()) == []


@pytest.mark.parametrize(
    ("text", "breaks"),
    [
        ("from mempo.rollout.agent import rollout", ["config.base imports rollout.agent"]),
        ("def f():\n    from mempo.rollout.render import Renderer", ["config.base imports rollout.render"]),
        ("import mempo.engine.model", ["config.base imports engine.model"]),
        ("from mempo.cli import main", ["config.base imports cli.main"]),
        ("from mempo.errors import UserError\nimport torch", []),
    ],
)
def test_the_check_itself_sees_a_break(text: str, breaks: list[str]) -> None:
    assert upward("config.base", imports(ast.parse(text), set(FILES))) == breaks


def test_the_check_itself_sees_a_circle() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"a"}}) == [["a", "b", "c"]]
    assert circles({"a": {"b"}, "b": set()}) == []


@pytest.mark.parametrize("folder", ["errors", "config"])
def test_the_lowest_layers_know_no_torch(folder: str) -> None:
    for module in FILES:
        if folder_of(module) != folder:
            continue
        for node in ast.walk(ast.parse(FILES[module].read_text("utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.split(".")[0] in ("torch", "transformers") for name in names), module
