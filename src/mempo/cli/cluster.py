"""`mempo cluster`: training on stock verl. Each command imports what it needs, so that `--help` is quick."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mempo.cli.policy import Force, Out, Overrides, Quiet, Source, console, key_values

cluster_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Train on verl and Ray (docs/cluster.md).")


Address = Annotated[
    str | None,
    typer.Option("--address", help="A Ray cluster that runs already: auto, host:6379, ray://host:10001."),
]


@cluster_app.command("doctor")
def doctor(source: Source, overrides: Overrides = None, address: Address = None) -> None:
    """Check versions, GPUs, model, questions and the retrieval service; exit code 1 when something is missing."""
    from mempo.cluster.doctor import all_checks
    from mempo.cluster.machine import Machine
    from mempo.config import resolve

    failed = False
    for check in all_checks(resolve(source, overrides or ()), Machine(), address):
        typer.echo(check.line)
        failed |= check.status == "fail"
    if failed:
        raise typer.Exit(1)


@cluster_app.command("launch")
def launch(
    source: Source,
    overrides: Overrides = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print verl's configuration and stop.")] = False,
    address: Address = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume the run in the output folder, from its last checkpoint.")
    ] = False,
    skip_checks: Annotated[
        bool, typer.Option("--skip-checks", help="Do not look at versions, GPUs and services before.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Train with reinforcement learning on verl.

    Checks the machine, writes the questions and verl's configuration into the run folder (output), and runs
    verl.trainer.main_ppo on it. cluster.nodes, gpus_per_node and the rest of cluster.* say how it is spread
    (docs/cluster.md). On several nodes the output folder, the model and the data must be the same on all.
    """
    from mempo.config import resolve

    resolved = resolve(source, overrides or ())
    if dry_run:
        from mempo.cluster.launch import dry_run as printed
        from mempo.run.own_objects import load_own_objects

        load_own_objects(resolved.config)
        typer.echo(printed(resolved, address), nl=False)
        return
    from mempo.cluster.launch import launch as run_launch
    from mempo.view.report import reported

    screen = console(quiet)
    with reported(Path(resolved.config.output), screen):
        code = run_launch(resolved, screen, address=address, resume=resume, skip_checks=skip_checks)
        if code:
            raise typer.Exit(code)


@cluster_app.command("convert")
def convert(
    checkpoint: Annotated[
        Path,
        typer.Argument(
            help="global_step_N, its actor folder, or the folder of all steps (the last).", show_default=False
        ),
    ],
    out: Annotated[Path, typer.Argument(help="The model folder to write.", show_default=False)],
    config: Annotated[
        Path | None, typer.Option("--config", help="The configuration to keep beside it; default: that of the run.")
    ] = None,
    own_run: Annotated[
        bool,
        typer.Option("--own-run", help="The run was one of your own: load its shards, which are pickles."),
    ] = False,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Turn a checkpoint of verl into a model folder for mempo eval."""
    from mempo.cluster.convert import convert as run_conversion

    run_conversion(checkpoint, out, config, own_run, console(quiet), force)


@cluster_app.command("sft-data")
def sft_data(
    source: Source,
    out: Out,
    overrides: Overrides = None,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Write demonstrations of the scripted expert for verl's SFT trainer, with a configuration that starts it."""
    from mempo.cluster.sft import write_sft_data
    from mempo.config import resolve

    write_sft_data(resolve(source, overrides or ()).config, out, console(quiet), force)


@cluster_app.command("plan")
def plan(
    source: Annotated[
        str | None, typer.Argument(help="A recipe, a YAML file, or a run folder to plan.", show_default=False)
    ] = None,
    overrides: Annotated[
        list[str] | None,
        key_values("Numbers of the plan (docs/cluster.md), such as model=Qwen2.5-7B gpus=8 turns=5."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Plan a run on paper: memory of a GPU, tokens and time of a step, retrieval replicas."""
    import json

    from mempo.cluster import plan as planning
    from mempo.cluster.plan_settings import plan_settings, settings_of_config
    from mempo.config import resolve
    from mempo.config.overrides import source_and_overrides

    source, numbers = source_and_overrides(source, overrides)
    given = {} if source is None else settings_of_config(resolve(source).config)
    made = planning.make_plan(plan_settings(given, numbers))
    if as_json:
        typer.echo(json.dumps(planning.as_json(made), indent=1))
    else:
        console().print(planning.plan_tables(made))
