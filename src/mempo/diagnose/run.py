"""`mempo diagnose`: find the rollouts and the policy of a run folder, and write its diagnosis."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mempo.config import Config, resolve
from mempo.config.base import is_import_path, leaves
from mempo.diagnose.control import ControlNote, ask
from mempo.diagnose.figures import save_figures
from mempo.diagnose.numbers import finite
from mempo.diagnose.records import Batch, batch_of, spread, with_recomputed_advantages
from mempo.diagnose.render import page
from mempo.diagnose.report import Material, build_report
from mempo.engine.model import load_policy, load_tokenizer
from mempo.engine.scorer import LocalScorer
from mempo.envs.registry import make_environment
from mempo.errors import UserError, counted
from mempo.rewards.rollout_metrics import counts
from mempo.rollout.interfaces import InteractiveEnvironment
from mempo.rollout.protocol import ACTION_TAGS, TurnGrammar
from mempo.rollout.tokenizer import Tokenizer
from mempo.rollout.trajectory import Trajectory
from mempo.run.evaluate import final_model
from mempo.storage.files import write_atomic
from mempo.storage.outputs import output_files, refuse_taken
from mempo.storage.read_files import exists
from mempo.storage.rollouts import load_rollouts
from mempo.storage.run_folder import RunFolder
from mempo.tools.make import own_tool

CURVE_QUESTIONS = 32
"""Curves of notes are drawn from so many questions of a step."""
_MADE_BY = "mempo diagnose"
_STEP = re.compile(r"step-(\d+)\.jsonl")
_EVALUATIONS = ("evaluation-start", "evaluation-final")


@dataclass(frozen=True)
class DiagnoseOptions:
    """`step`: `last`, the number of a saved RL step, or the name of an evaluation's rollouts (`evaluation-final`).
    `steps`: of how many saved steps, spread evenly, curves of notes are drawn; None: all. `use_model`: ask the policy
    about at most `notes` notes. `out` None: `diagnosis/` in the run. `overrides`: `key=value` over the run's own
    configuration. `force`: replace what is there, see `mempo.storage.outputs`."""

    step: str = "last"
    steps: int | None = 8
    use_model: bool = True
    notes: int = 256
    out: Path | None = None
    overrides: tuple[str, ...] = ()
    force: bool = False


def diagnose(run: Path, options: DiagnoseOptions | None = None) -> dict[str, Any]:
    """Write `diagnosis.json`, `diagnosis.md` and the figures of a run; returns the report.

    Raises:
        UserError: no run, no rollouts of the step, rollouts without notes, or files that cannot be read.
    """
    options = options or DiagnoseOptions()
    if not exists(run / "config.yaml"):
        raise UserError(f"{run} is not a run folder (no config.yaml); give the output folder of mempo train")
    out = options.out or run / "diagnosis"
    refuse_taken(out, ("diagnosis.json", "diagnosis.md"), "diagnosis", _MADE_BY, options.force, _of_earlier_release)
    config = resolve(str(run), options.overrides).config
    name = _chosen(run, options.step)
    model = _model(run, config)
    tokenizer = load_tokenizer(str(model))
    metrics = finite(RunFolder(run).metrics())
    reader = _Reader(run, config, tokenizer, _grammar(config))
    batch, trajectories, warnings = reader.read(name)
    if not batch.rollouts:
        raise UserError(
            f"no rollout of {name} counts ({counted(batch.errors, 'rollout')} failed for infrastructure reasons, "
            f"{batch.unscored} have no score): there is nothing to diagnose"
        )
    if not batch.noted:
        why = "agent.notes is forbidden" if config.agent.notes == "forbidden" else "no turn after the first wrote one"
        raise UserError(f"the {len(batch.rollouts)} rollouts of {name} have no notes to diagnose ({why})")
    if not config.rl.memory_signal:
        warnings.append("rl.memory_signal is false: notes were not scored and got no advantages in this run")
    control = None
    if options.use_model:
        control = _ask(model, config, tokenizer, batch, trajectories, options.notes)
        warnings += _other_policy(run, name, model, metrics)
    else:
        warnings.append("the policy was not asked (--no-model): no control, no P(history)")
    material = Material(
        run=run.absolute().name,
        batch=batch,
        metrics=metrics,
        memory=config.memory,
        advantages=config.advantages,
        history=[
            (step, reader.read(f"step-{step}")[0].thinned(CURVE_QUESTIONS))
            for step in _spread(saved_steps(run), options.steps)
        ],
        control=control,
        warnings=warnings,
        memory_signal=config.rl.memory_signal,
        settings=dict(leaves(config.model_dump(mode="json"))),
    )
    report = build_report(material)
    with output_files(out, "diagnosis", _MADE_BY, options.force, _of_earlier_release) as folder:
        report["figures"] = save_figures(report, folder)
        write_atomic(folder / "diagnosis.md", page(report))
        write_atomic(folder / "diagnosis.json", dump(report) + "\n")
    return report


def _of_earlier_release(out: Path) -> list[str]:
    """The files of a diagnosis by a release that kept no record of them."""
    try:
        report = json.loads((out / "diagnosis.json").read_text("utf-8"))
        figures = [figure[kind] for figure in report["figures"] for kind in ("png", "svg")]
        return ["diagnosis.json", "diagnosis.md", *map(str, figures)] if "rollouts" in report else []
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return []


def dump(report: dict[str, Any]) -> str:
    return json.dumps(report, ensure_ascii=False, allow_nan=False, indent=1)


def saved_steps(run: Path) -> list[int]:
    """RL steps whose rollouts are in the folder, ascending."""
    found = (_STEP.fullmatch(file.name) for file in (run / "rollouts").glob("step-*.jsonl"))
    return sorted(int(match.group(1)) for match in found if match)


@dataclass(frozen=True)
class _Reader:
    run: Path
    config: Config
    tokenizer: Tokenizer
    grammar: TurnGrammar

    def read(self, name: str) -> tuple[Batch, list[Trajectory], list[str]]:
        """The batch of a rollout file, the trajectories of its rollouts that count, and what to warn of."""
        config, file = self.config, self.run / "rollouts" / f"{name}.jsonl"
        is_rl = name not in _EVALUATIONS
        try:
            trajectories, lines, _ = load_rollouts(file, self.tokenizer, self.grammar)
            lines = finite(lines)  # another writer may have put NaN there
            size = config.rl.rollouts_per_question if is_rl else config.evaluate.rollouts_per_question
            batch = batch_of(name, trajectories, lines, self.tokenizer, size)
        except (OSError, ValueError, AttributeError, LookupError, TypeError, OverflowError, RecursionError) as error:
            raise UserError(
                f"the rollouts {file} and their .tokens file cannot be read ({type(error).__name__}: {error}); choose "
                "another --step"
            ) from error
        warnings = []
        if not is_rl:
            warnings.append(
                "these are rollouts of an evaluation: without advantages, and groups may be single rollouts"
            )
        elif batch.advantages == "none" and config.advantages.function:
            warnings.append(
                "the rollout file has no advantages, and those of advantages.function are not computed again"
            )
        elif batch.advantages == "none":
            batch = with_recomputed_advantages(batch, config.advantages, config.memory)
            warnings.append(
                "the rollout file has no advantages: they were computed again from scores and r with the run's settings"
            )
        if batch.errors:
            warnings.append(f"left out: {counted(batch.errors, 'rollout')} that failed for infrastructure reasons")
        if batch.unscored:
            warnings.append(f"left out: {counted(batch.unscored, 'rollout')} without a score")
        sound = [t for t, line in zip(trajectories, lines, strict=True) if counts(line)]
        return batch, sound, warnings


def _grammar(config: Config) -> TurnGrammar:
    """How turns are read: the built-in actions, those of the run's environment and those of its own tools."""
    data = config.data
    environment = make_environment(data.environment, data.environment_options) if data.environment else None
    own = environment.actions if isinstance(environment, InteractiveEnvironment) else ()
    tags = [own_tool(tool).name for tool in config.agent.tools if is_import_path(tool)]
    actions = tuple(dict.fromkeys((*own, *tags, *ACTION_TAGS)))
    return TurnGrammar(config.agent.notes, config.agent.first_note, actions)


def _chosen(run: Path, step: str) -> str:
    """The name of the rollout file that `--step` asks for."""
    steps = saved_steps(run)
    evaluations = [name for name in _EVALUATIONS if (run / "rollouts" / f"{name}.jsonl").is_file()]
    if step in evaluations:
        return step
    if step == "last" and steps:
        return f"step-{steps[-1]}"
    if step.isascii() and step.isdigit() and int(step) in steps:
        return f"step-{int(step)}"
    instead = f"; --step {evaluations[-1]} looks at the evaluation instead" if evaluations else ""
    if not steps:
        raise UserError(
            f"{run} holds no rollouts of an RL step (rl.log_rollouts_every 0 saves none){instead or '; train with it'}"
        )
    shown = ", ".join(map(str, steps if len(steps) <= 8 else [*steps[:4], "…", *steps[-3:]]))
    known = ", ".join(["last", *evaluations])
    raise UserError(f"--step {step}: {run} holds no such rollouts; saved steps: {shown}; also {known}")


def _spread(steps: Sequence[int], count: int | None) -> list[int]:
    """`count` steps, evenly, the last among them."""
    backwards = list(reversed(steps))
    return sorted(backwards[i] for i in spread(len(steps), len(steps) if count is None else count))


def _model(run: Path, config: Config) -> Path | str:
    """The policy to ask: the final one, the newest checkpoint, or what the run began with."""
    try:
        return final_model(run)
    except UserError:
        if (run / "start").is_dir():
            return run / "start"
        if config.model.path:
            return config.model.path
        raise


def _ask(
    model: Path | str,
    config: Config,
    tokenizer: Tokenizer,
    batch: Batch,
    trajectories: Sequence[Trajectory],
    notes: int,
) -> tuple[list[ControlNote], int]:
    policy = load_policy(config.model, str(model), tokenizer)
    return ask(batch, trajectories, tokenizer, LocalScorer(policy), config.memory.probe, notes, policy.window)


def _other_policy(run: Path, name: str, model: Path | str, metrics: Sequence[Mapping[str, Any]]) -> list[str]:
    """A warning where the policy that is asked is not the one that made the rollouts."""
    if name in _EVALUATIONS:
        return []
    made = name.removeprefix("step-")
    last = max((line["step"] for line in metrics if line.get("stage") == "rl"), default=0)
    asked = f"rl-{last}" if model == run / "final" else Path(model).name
    if asked == f"rl-{made}":
        return [
            f"P of the control rows is of the policy after step {made}; the rollouts were made before its last update"
        ]
    return [f"P of the control rows is of another policy ({asked}) than the one that made the rollouts (step {made})"]
