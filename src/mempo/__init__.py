"""mempo: train, evaluate and inspect long-horizon LLM agents that manage their own memory.

OpenMP threads that spin at barriers make torch many times slower on a busy machine, and the choice is read once,
when torch is first loaded. So importing `mempo` asks for passive waiting, unless the user has decided already.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("GOMP_SPINCOUNT", "0")

__version__ = "0.1.0"

if TYPE_CHECKING:
    from mempo.config import Config, resolve
    from mempo.errors import ConfigError, UserError
    from mempo.rollout.question import Question
    from mempo.rollout.trajectory import Trajectory
    from mempo.run.api import compare_agents, evaluate_agent, train_agent
    from mempo.run.loaded import LoadedAgent, load_agent

__all__ = [
    "Config",
    "ConfigError",
    "LoadedAgent",
    "Question",
    "Trajectory",
    "UserError",
    "compare_agents",
    "evaluate_agent",
    "load_agent",
    "resolve",
    "train_agent",
]

_HOMES = {
    "Config": "mempo.config",
    "ConfigError": "mempo.errors",
    "LoadedAgent": "mempo.run.loaded",
    "Question": "mempo.rollout.question",
    "Trajectory": "mempo.rollout.trajectory",
    "UserError": "mempo.errors",
    "compare_agents": "mempo.run.api",
    "evaluate_agent": "mempo.run.api",
    "load_agent": "mempo.run.loaded",
    "resolve": "mempo.config",
    "train_agent": "mempo.run.api",
}


def __getattr__(name: str) -> Any:
    """Loaded when first asked for, so that `import mempo` stays fast."""
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'mempo' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
