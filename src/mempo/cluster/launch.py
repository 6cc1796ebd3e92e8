"""`mempo cluster launch`: the files of a run, and stock verl's trainer on them."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from mempo.cluster.constraints import check_divides, check_enough_questions
from mempo.cluster.doctor import failures, quick_checks
from mempo.cluster.machine import Machine
from mempo.cluster.process import run_process
from mempo.cluster.questions import write_questions
from mempo.cluster.verl_checkpoint import resumable_step
from mempo.cluster.verl_config import CONFIG_NAME, verl_config
from mempo.cluster.verl_keys import changes_nothing_learnt
from mempo.config import Config, Resolved, completed
from mempo.config.base import is_import_path
from mempo.config.cluster import ClusterSettings
from mempo.config.yaml_text import dump_yaml
from mempo.engine.model import load_tokenizer
from mempo.errors import UserError
from mempo.progress import say
from mempo.rollout.render import Renderer
from mempo.run.prompt_date import with_saved_date, with_todays_date
from mempo.run.trackers import check_trackers
from mempo.run.train import fingerprints
from mempo.setup import Data, advantage_function, check_window, custom_score, load_data, make_agent, make_tools
from mempo.storage.files import write_atomic
from mempo.storage.read_files import exists
from mempo.storage.run_folder import RunFolder

MAY_CHANGE = (
    *("cluster.micro_batch_tokens", "cluster.score_batch_tokens", "cluster.gpu_memory_fraction"),
    *("cluster.agent_workers", "cluster.offload_parameters", "cluster.offload_optimizer", "cluster.test_every"),
    *("cluster.keep_checkpoints", "track", "cluster.loggers", "cluster.project", "model.gradient_checkpointing"),
    "rl.max_failed_share",
)
"""Keys that a resumed run may have other values of: they change memory and speed, never the result. verl's own of that
kind are named in the table of its keys."""

Runner = Callable[[Sequence[str], Mapping[str, str]], int]


def dry_run(resolved: Resolved, address: str | None = None) -> str:
    """verl's configuration as it would be written. Nothing is, and neither verl nor a model is needed.

    Raises:
        UserError: what a launch would refuse without looking at the machine.
    """
    config = resolved.config
    folder = Path(config.output)
    made = verl_config(
        config, resolved.plain(), folder, address=checked_address(address), environment=_environment(config, folder)
    )
    return dump_yaml(made)


def launch(
    resolved: Resolved,
    console: Console,
    *,
    address: str | None = None,
    resume: bool = False,
    skip_checks: bool = False,
    machine: Machine | None = None,
    runner: Runner | None = None,
) -> int:
    """Write the run folder and run verl's trainer in a process of its own; returns its exit code.

    Raises:
        UserError: anything that is the user's to fix, before the process starts.
    """
    run = RunFolder(Path(resolved.config.output))
    if resume:
        resolved = with_saved_date(resolved, run.path)
    config = resolved.config
    machine, runner, address = machine or Machine(), runner or run_process, checked_address(address)
    dry_run(resolved, address)  # refuses before anything is looked at
    free = may_change(run, config)
    run.check(resolved.plain(), resume, completed, free)
    done = resumable_step(run, config) if resume else 0
    for check_own in (advantage_function, custom_score, check_trackers):
        check_own(config)
    failed = [] if skip_checks else failures(list(quick_checks(resolved, machine, address)))
    for check in failed:
        say(console, check.line)
    if failed:
        raise UserError(
            f"{len(failed)} checks of mempo cluster doctor failed ({', '.join(check.name for check in failed)}), see "
            "the lines above; --skip-checks starts all the same"
        )
    with run.locked():
        data, renderer = _checked_data(config, run, machine)
        for remark in data.remarks:
            say(console, remark)
        if not run.has_begun():
            resume = False  # what an earlier start left is no more than its configuration
            resolved = with_todays_date(resolved, renderer.tokenizer)
            renderer = Renderer(renderer.tokenizer, resolved.config.prompt)
        run.refuse_other_data(fingerprints(data, renderer), resume)
        run.begin(resolved.plain(), resume, completed, free)
        folder = run.path.absolute()
        write_questions(folder / "data" / "train.parquet", data.train, source=_source(config))
        if data.test:
            write_questions(folder / "data" / "test.parquet", data.test, source=_source(config))
        made = verl_config(
            config,
            resolved.plain(),
            folder,
            address=address,
            tested=bool(data.test),
            environment=_environment(config, folder),
        )
        write_atomic(folder / f"{CONFIG_NAME}.yaml", dump_yaml(made))
        counts = f"{len(data.train)} training questions, {len(data.test)} test questions"
        where = f"verl's settings are in {folder / CONFIG_NAME}.yaml"
        say(console, f"run {run.path}: {counts}; {where}")
        if resume:
            say(console, f"resumes after step {done} of {config.rl.steps}")
        code = runner(command(folder), {**os.environ, "HYDRA_FULL_ERROR": "1"})
    if code:
        what = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        say(console, f"verl ended with {what}; its last lines say why. --resume continues from the last checkpoint")
    else:
        ended = f"done; to make a model of it: mempo cluster convert {run.path / 'checkpoints'} OUT"
        say(console, ended)
    return code if code >= 0 else 128 - code


def command(folder: Path) -> list[str]:
    """The process of verl's trainer."""
    return [
        *(sys.executable, "-m", "verl.trainer.main_ppo"),
        *("--config-path", str(folder), "--config-name", CONFIG_NAME),
    ]


def checked_address(address: str | None) -> str | None:
    """`auto`, `host:port` or `ray://host:port`, as Ray takes it.

    Raises:
        UserError: anything else.
    """
    if address is None or address == "auto" or re.fullmatch(r"(ray://)?(\[[0-9a-fA-F:]+\]|[\w.-]+):\d{1,5}", address):
        return address
    raise UserError(f"--address {address!r} is not a Ray cluster; write auto, host:6379 or ray://host:10001")


def may_change(run: RunFolder, config: Config) -> list[str]:
    """`MAY_CHANGE`, and those of verl's own keys, now and when the run began, that change memory and speed alone."""
    there = run.config().get("cluster") if exists(run.path / "config.yaml") else None
    before = there.get("verl") if isinstance(there, Mapping) else None
    keys = [*(config.cluster or ClusterSettings()).verl, *(before if isinstance(before, Mapping) else ())]
    return [*MAY_CHANGE, *(f"cluster.verl.{key}" for key in changes_nothing_learnt(keys))]


def _checked_data(config: Config, run: RunFolder, machine: Machine) -> tuple[Data, Renderer]:
    """The questions, once the agent that will play them has been made: what it refuses, it refuses here."""
    path = config.model.path or ""
    shape = machine.shape(path)
    check_divides(config, shape)
    check_window(config, shape.window_tokens)
    tokenizer = load_tokenizer(path)
    data = load_data(config, run.path / "data")
    check_enough_questions(config, len(data.train))
    agent = make_agent(config, tokenizer, make_tools(config, data.retriever), data.environment)
    return data, agent.renderer


def _source(config: Config) -> str:
    """The name of the data in verl's measures."""
    if config.data.environment:
        return config.data.environment.rpartition(":")[2]
    return Path(config.data.train or "questions").stem


def _environment(config: Config, folder: Path) -> dict[str, str]:
    """Variables that every process of the run needs, on other nodes too."""
    made: dict[str, str] = {}
    if "tensorboard" in (config.cluster.loggers if config.cluster else ()):
        made["TENSORBOARD_DIR"] = str(folder.absolute() / "tensorboard")
    own = (
        config.agent.context,
        *config.agent.tools,
        config.reward.score,
        config.advantages.function,
        config.data.environment,
    )
    if any(name and is_import_path(name) for name in own):
        # Your own modules are searched in the folder you start from; a worker starts elsewhere.
        made["PYTHONPATH"] = os.pathsep.join(filter(None, (str(Path.cwd()), os.environ.get("PYTHONPATH"))))
    return made
