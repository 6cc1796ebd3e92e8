"""The order of the rooms: each imports only from floors below, or from rooms listed earlier on its own floor."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import mempo

SOURCE = Path(mempo.__file__).parent

FLOORS: list[list[str]] = [
    [
        "errors",
        "config",
        "imports",
        "own_objects",
        "question",
        "protocol",
        "trajectory",
        "expert",
        "interfaces",
        "text",
        "whole",
        "read_files",
        "outputs",
        "stopping",
    ],
    [
        "token_bytes",
        "tokens",
        "render",
        "context",
        "rewards",
        "measures",
        "loss",
        "retrieval",
        "runs",
        "plots",
        "data",
        "worlds",
    ],
    ["tools", "engine"],
    ["agent"],
    ["demos", "gold_plans", "evaluate", "train", "diagnose"],
    ["view", "build", "expert_rollouts"],
    [
        "cold_start",
        "evaluation",
        "rescoring",
        "extending",
        "pipeline",
        "diagnose_run",
        "cluster",
        "cli",
    ],
]
PLACE = {room: (floor, n) for floor, rooms in enumerate(FLOORS) for n, room in enumerate(rooms)}


def room_of(file: Path) -> str:
    """`mempo/runs/files.py` and `mempo/agent.py` are the rooms `runs` and `agent`."""
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_rooms(tree: ast.AST) -> set[str]:
    """Rooms of mempo that a module imports anywhere in it, inside functions and type-checking blocks too."""
    found: set[str] = set()
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative imports hide the room"
            names = [
                f"{node.module}.{alias.name}" if node.module == "mempo" else str(node.module) for alias in node.names
            ]
        found |= {name.split(".")[1] for name in names if name.startswith("mempo.")}
    return found


def rule_breaks(room: str, imported: set[str]) -> list[str]:
    return [f"{room} imports {other}" for other in sorted(imported - {room}) if PLACE[other] > PLACE[room]]


FILES = [f for f in sorted(SOURCE.rglob("*.py")) if f != SOURCE / "__init__.py" and room_of(f) != "__main__"]


@pytest.mark.parametrize("file", FILES, ids=[str(f.relative_to(SOURCE)) for f in FILES])
def test_a_room_imports_only_from_below(file: Path) -> None:
    room = room_of(file)
    assert room in PLACE, f"{room} is new: give it a place in FLOORS"
    imported = imported_rooms(ast.parse(file.read_text("utf-8"))) - {"__version__"}
    assert imported <= set(PLACE), f"unknown rooms {imported - set(PLACE)}"
    assert rule_breaks(room, imported) == []


def test_no_room_has_two_places() -> None:
    assert len(PLACE) == sum(len(rooms) for rooms in FLOORS)


@pytest.mark.parametrize(
    ("text", "breaks"),
    [
        ("from mempo.rollout.agent import rollout", ["tokens imports agent"]),
        ("def f():\n    from mempo.rollout.render import Renderer", ["tokens imports render"]),
        ("import mempo.engine.model", ["tokens imports engine"]),
        ("from mempo import cli", ["tokens imports cli"]),
        ("from mempo.errors import UserError\nimport torch", []),
    ],
)
def test_the_check_itself_sees_a_break(text: str, breaks: list[str]) -> None:
    assert rule_breaks("tokens", imported_rooms(ast.parse(text))) == breaks


@pytest.mark.parametrize("room", FLOORS[0])
def test_the_ground_floor_knows_no_torch(room: str) -> None:
    files = [file for file in FILES if room_of(file) == room]
    for node in (node for file in files for node in ast.walk(ast.parse(file.read_text("utf-8")))):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
        assert not any(name.split(".")[0] in ("torch", "transformers") for name in names)
