"""What the commands do, for a script or a notebook: one function each, the same settings, the same folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from mempo.config import resolve
from mempo.evaluate.compare import Report
from mempo.run.evaluate import default_out, evaluate_model, final_model
from mempo.run.loaded import Overrides, override_texts
from mempo.run.score import compare_runs
from mempo.run.train import train


def train_agent(source: str | Path, overrides: Overrides = (), resume: bool = False, quiet: bool = False) -> Path:
    """Train as `mempo train` does, and return the run folder.

    `source` is a recipe by name, a YAML file or, with `resume`, a run folder. `overrides` win over it:
    `{"rl.steps": 2}`, or `["rl.steps=2"]` as on the command line. `quiet` prints nothing.

    Raises:
        UserError: a setting, a file or a server is wrong; in most cases before a model loads.
    """
    return train(resolve(str(source), override_texts(overrides)), resume, Console(quiet=quiet))


def evaluate_agent(
    run: str | Path, overrides: Overrides = (), out: str | Path | None = None, quiet: bool = False
) -> dict[int, dict[str, Any]]:
    """Evaluate the policy of a run on its test questions, as `mempo eval RUN` does.

    Returns `{number of objectives: metrics}`; the metrics have the names of `evaluation.json`, such as `em`, `f1` and
    `total_tokens`, and rates are in [0, 1]. Every rollout is kept in `out` (by default a folder inside the run), so
    that the same call resumes.

    Raises:
        UserError: there is no policy or no question, or `out` holds another evaluation.
    """
    path = Path(run)
    resolved, model = resolve(str(path), override_texts(overrides)), str(final_model(path))
    folder = Path(out) if out is not None else default_out(resolved, model, path)
    return evaluate_model(resolved, model, folder, Console(quiet=quiet))


def compare_agents(
    *folders: str | Path, scores: Sequence[str] = (), agents: Sequence[str] = (), quiet: bool = False
) -> Report:
    """Set runs or evaluation folders side by side, as `mempo compare` does: a table with paired differences.

    `scores` names published scorers (docs/evaluation.md), `agents` limits which agents are compared.

    Raises:
        UserError: a folder without rollouts.
    """
    return compare_runs([Path(folder) for folder in folders], scores, agents, (), None, Console(quiet=quiet))
