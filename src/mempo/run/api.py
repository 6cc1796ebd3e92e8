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
    """`mempo train`: run what a recipe, a YAML file or a run folder (`resume`) says; the run folder.

    Raises:
        UserError: as the command, before a model loads where that can be known.
    """
    return train(resolve(str(source), override_texts(overrides)), resume, Console(quiet=quiet))


def evaluate_agent(
    run: str | Path, overrides: Overrides = (), out: str | Path | None = None, quiet: bool = False
) -> dict[int, dict[str, Any]]:
    """`mempo eval RUN`: play the test questions with the policy of a run; metrics by number of objectives.

    Every rollout is kept in a folder (`out`, or one in the run), so that the same call resumes.

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
    """`mempo compare`: agents of runs or evaluation folders side by side, with paired differences.

    Raises:
        UserError: a folder without rollouts.
    """
    return compare_runs([Path(folder) for folder in folders], scores, agents, (), None, Console(quiet=quiet))
