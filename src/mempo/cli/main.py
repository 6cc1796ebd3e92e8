"""The command line. Heavy modules are imported by the command that needs them, so that `--help` is quick."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from mempo import __version__
from mempo.cli.chat import chat
from mempo.cli.cluster import cluster_app
from mempo.cli.index import index_app
from mempo.cli.policy import (
    ConfigFile,
    Force,
    Model,
    OptionalSource,
    Out,
    Overrides,
    Quiet,
    Served,
    ServedModel,
    Server,
    Source,
    Tokenizer,
    console,
    key_values,
    named_policy,
)
from mempo.cli.view import view
from mempo.config.addresses import masked
from mempo.errors import UserError
from mempo.progress import say
from mempo.storage.stopping import quiet_interrupt, stoppable

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
environment_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Write the corpus and questions of an environment."
)
app.add_typer(index_app, name="index")
app.add_typer(environment_app, name="environment")
app.add_typer(cluster_app, name="cluster")

Resume = Annotated[bool, typer.Option("--resume", help="Resume the run in the output folder.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Load what import paths name, print the resolved configuration, and stop.")
]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mempo {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Train, evaluate and inspect language model agents that manage their own memory."""


@app.command()
def train(
    source: Source, overrides: Overrides = None, resume: Resume = False, dry_run: DryRun = False, quiet: Quiet = False
) -> None:
    """Train an agent: demonstrations, SFT, reinforcement learning, evaluation, as the configuration says."""
    _train(source, list(overrides or ()), resume, dry_run, quiet)


@app.command()
def sft(
    source: Source, overrides: Overrides = None, resume: Resume = False, dry_run: DryRun = False, quiet: Quiet = False
) -> None:
    """The cold start alone: `train` with rl.steps=0."""
    _train(source, [*(overrides or ()), "rl.steps=0"], resume, dry_run, quiet)


def _train(source: str, overrides: list[str], resume: bool, dry_run: bool, quiet: bool) -> None:
    from mempo.config import dump_with_origins, resolve

    resolved = resolve(source, overrides)
    if dry_run:
        from mempo.run.own_objects import load_own_objects

        load_own_objects(resolved.config)
        typer.echo(dump_with_origins(resolved), nl=False)
        return
    from mempo.run.train import train as run_training
    from mempo.run.train import where_it_stands
    from mempo.view.report import reported

    screen = console(quiet)
    with reported(Path(resolved.config.output), screen), stoppable(lambda: where_it_stands(resolved)):
        run_training(resolved, resume, screen)


@app.command("eval")
def evaluate(
    model: Model = None,
    overrides: Overrides = None,
    config: ConfigFile = None,
    server: Server = None,
    served_model: ServedModel = None,
    tokenizer: Tokenizer = None,
    agents: Annotated[
        str | None, typer.Option("--agents", help="Agents to compare, such as memory,react (docs/evaluation.md).")
    ] = None,
    objectives: Annotated[
        str | None, typer.Option("--objectives", help="Numbers of objectives of the test questions, such as 2,4,8.")
    ] = None,
    questions: Annotated[
        int | None, typer.Option("--questions", min=1, help="Test questions per number of objectives.")
    ] = None,
    samples: Annotated[
        int | None, typer.Option("--samples", min=1, help="Rollouts of each question: Avg@k, Pass@k.")
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave broken rows of question files out, and count them.")
    ] = False,
    retry_errors: Annotated[
        bool, typer.Option("--retry-errors", help="Repeat rollouts that failed because a server or tool did.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="The folder of the evaluation; the same command resumes it."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Evaluate a policy, as one or several agents: how good, at what cost in tokens, with which notes."""
    from mempo.run.evaluate import default_out, evaluate_model, evaluate_server, played_so_far
    from mempo.view.report import reported

    given = {"evaluate.agents": agents, "evaluate.questions": questions, "evaluate.rollouts_per_question": samples}
    more = [f"{key}={value}" for key, value in given.items() if value is not None]
    if objectives is not None:
        more.append(f"data.test_objectives={list(_whole_numbers('--objectives', objectives))}")
    more += ["data.skip_bad=true"] if skip_bad else []
    served = Served(server, served_model, tokenizer)
    named = named_policy(model, overrides, config, served, more)
    resolved, path = named.resolved, named.path
    screen = console(quiet)
    if path is None:
        served_name = resolved.config.server.model if resolved.config.server else None
        out = out or default_out(resolved, served_name or "server", named.run)
        with reported(out, screen), stoppable(lambda: played_so_far(out)):
            evaluate_server(resolved, out, screen, retry_errors)
    else:
        out = out or default_out(resolved, path, named.run)
        with reported(out, screen), stoppable(lambda: played_so_far(out)):
            evaluate_model(resolved, path, out, screen, retry_errors)
    say(screen, f"everything is in {out}")


Runs = Annotated[
    list[Path], typer.Argument(help="Folders of mempo eval, training runs, or .jsonl files.", show_default=False)
]
Scores = Annotated[
    str,
    typer.Option(
        "--scores",
        help="Scorers: default, search-r1, hotpotqa, flashrag, mem1, asearcher-train, asearcher-eval "
        "(docs/evaluation.md).",
    ),
]


@app.command()
def score(
    run: Annotated[
        Path, typer.Argument(help="A folder of mempo eval, a training run, or a .jsonl file.", show_default=False)
    ],
    overrides: Annotated[
        list[str] | None, key_values("Settings of reward.*, such as reward.normalization=search-r1.")
    ] = None,
    scores: Scores = "default",
    per_rollout: Annotated[
        bool, typer.Option("--per-rollout", help="Also write scores/NAME.jsonl, one line for each rollout.")
    ] = False,
    judge: Annotated[
        str | None, typer.Option("--judge", help="An OpenAI-compatible server whose model judges the answers.")
    ] = None,
    judge_model: Annotated[
        str | None, typer.Option("--judge-model", help="The server's name of that model, where it serves several.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="The folder for scores.json; default: that of the rollouts.")
    ] = None,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Score saved rollouts again, with other metrics and without the policy."""
    from mempo.evaluate.rescore import scorers_of
    from mempo.run.score import judge_settings, score_run

    if judge is None and judge_model is not None:
        raise UserError("--judge-model belongs to --judge, which is not given")
    settings = None if judge is None else judge_settings(judge, judge_model)
    score_run(run, scorers_of(scores), list(overrides or ()), out, per_rollout, settings, console(quiet), force)


@app.command()
def compare(
    runs: Runs,
    agents: Annotated[str | None, typer.Option("--agents", help="Only these agents, such as memory,react.")] = None,
    scores: Scores = "default",
    format: Annotated[
        str | None, typer.Option("--format", help="Print as terminal, markdown, csv or latex (several: a,b).")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write the tables (all, or those of --format) and the figures here.")
    ] = None,
    force: Force = False,
) -> None:
    """Set agents and runs side by side: a table, and with --out files and figures."""
    from mempo.evaluate.rescore import scorers_of
    from mempo.run.score import compare_runs

    compare_runs(runs, scorers_of(scores), _names(agents), _names(format), out, console(), force)


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def _whole_numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise UserError(f"{option} {text!r} is not a list of whole numbers from 1; write 2 or 2,4,8")
    return tuple(dict.fromkeys(found))


@app.command()
def diagnose(
    run: Annotated[Path, typer.Argument(help="A run folder.", show_default=False)],
    overrides: Overrides = None,
    step: Annotated[
        str, typer.Option("--step", help="Which rollouts: last, a saved RL step, or evaluation-final.")
    ] = "last",
    steps: Annotated[
        str, typer.Option("--steps", help="Saved steps that curves of notes are drawn from: a number, or all.")
    ] = "8",
    no_model: Annotated[bool, typer.Option("--no-model", help="Do not ask the policy: no control rows.")] = False,
    notes: Annotated[int, typer.Option("--notes", min=1, help="How many notes the policy is asked about.")] = 256,
    out: Annotated[
        Path | None, typer.Option("--out", help="The folder to write; default: diagnosis in the run folder.")
    ] = None,
    force: Force = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON instead of the table.")] = False,
    true_advantage: Annotated[
        bool,
        typer.Option(
            "--true-advantage",
            help="Play on from notes many times, and say how well each signal tells what they are worth; --step: last, "
            "start, an RL step or a checkpoint.",
        ),
    ] = False,
    questions: Annotated[
        int | None, typer.Option("--questions", min=1, help="True advantage: questions played; default 8.")
    ] = None,
    states: Annotated[
        int | None, typer.Option("--states", min=1, help="True advantage: states looked at; default 40.")
    ] = None,
    others: Annotated[
        int | None, typer.Option("--others", min=1, help="True advantage: notes beside each; default 4.")
    ] = None,
    continuations: Annotated[
        int | None, typer.Option("--continuations", min=1, help="True advantage: rollouts from each note; default 8.")
    ] = None,
    worth: Annotated[
        str | None,
        typer.Option("--worth", help="True advantage: what counts at the end, score or share of objectives."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Diagnose the memory signal of a run: table, JSON, figures (docs/diagnose.md)."""
    measured = {"questions": questions, "states": states, "others": others, "continuations": continuations}
    measured = {name: value for name, value in {**measured, "worth": worth}.items() if value is not None}
    if true_advantage:
        _true_advantage(run, step, measured, out, as_json, quiet)
        return
    if measured:
        raise UserError(f"--{next(iter(measured))} belongs to --true-advantage, which is not given")
    from mempo.diagnose.render import screen as diagnosis_screen
    from mempo.diagnose.run import DiagnoseOptions, dump
    from mempo.diagnose.run import diagnose as run_diagnosis

    if steps != "all" and not (steps.isascii() and steps.isdigit() and int(steps) > 0):
        raise UserError(f"--steps {steps!r} is neither all nor a number from 1")
    count = None if steps == "all" else int(steps)
    report = run_diagnosis(run, DiagnoseOptions(step, count, not no_model, notes, out, tuple(overrides or ()), force))
    if as_json:
        typer.echo(dump(report))
        return
    screen = console(quiet)
    screen.print(diagnosis_screen(report))
    say(screen, f"figures, diagnosis.md and diagnosis.json are in {out or run / 'diagnosis'}")


def _true_advantage(
    run: Path, step: str, measured: dict[str, Any], out: Path | None, as_json: bool, quiet: bool
) -> None:
    import json

    from mempo.diagnose.true_advantage import TrueAdvantageOptions, diagnose_truth
    from mempo.diagnose.true_table import screen as true_screen

    if measured.get("worth", "score") not in ("score", "share"):
        raise UserError(f"--worth {measured['worth']!r} is neither score nor share")
    screen = console(quiet)
    report = diagnose_truth(run, TrueAdvantageOptions(policy=step, out=out, **measured), None if as_json else screen)
    if as_json:
        typer.echo(json.dumps(report, ensure_ascii=False, indent=1))
        return
    screen.print(true_screen(report))
    where = f"true-advantage.md and true-advantage.json are in {out or run / 'diagnosis'}"
    say(screen, where)


app.command()(view)
app.command()(chat)


@app.command()
def study(
    file: Annotated[
        str, typer.Argument(help="A study file (docs/study.md), or a shipped one by its name.", show_default=False)
    ],
    overrides: Annotated[list[str] | None, key_values("Settings of every run that win over the file.")] = None,
    only: Annotated[list[str] | None, typer.Option("--only", help="Only this arm; may be given several times.")] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Runs at a time; default: as many as there are cores.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="The seeds that the file names for its long form.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the runs, which of them are done, and the expected time; stop.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="The folder of the study; default: runs/study-NAME.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Run arms from shared starts over seeds, and compare them. Finished runs are kept; the same command resumes."""
    from mempo.study.run import StudyOptions, run_study

    options = StudyOptions(out, tuple(only or ()), workers, full, dry_run, tuple(overrides or ()))
    from mempo.cli.study_run import with_report

    with stoppable(lambda: "runs that ended and checkpoints of the others are kept; the same command resumes"):
        run_study(file, options, console(quiet), with_report)


@app.command("config")
def show_config(
    source: OptionalSource = None,
    overrides: Overrides = None,
    explain: Annotated[
        str | None, typer.Option("--explain", metavar="KEY", help="Say what one setting is, such as memory.pool.")
    ] = None,
) -> None:
    """Print the resolved configuration, and where each value came from; all settings: docs/settings.md."""
    from mempo.config import dump_with_origins, resolve
    from mempo.config.overrides import source_and_overrides

    source, settings = source_and_overrides(source, overrides)
    resolved = resolve(source, settings) if source is not None or settings or explain is None else None
    if explain is not None:
        from mempo.config.describe import explain_key

        typer.echo(explain_key(explain, resolved))
        return
    assert resolved is not None
    typer.echo(dump_with_origins(resolved), nl=False)


@app.command()
def push(
    run: Annotated[Path, typer.Argument(help="A run folder.", show_default=False)],
    name: Annotated[str | None, typer.Argument(help="OWNER/NAME on the Hugging Face hub; none with --out.")] = None,
    public: Annotated[bool, typer.Option("--public", help="Make it public; the default is private.")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Write the folder here and upload nothing.")] = None,
) -> None:
    """Publish a trained policy: weights, configuration, evaluations and a model card, to the hub or a folder."""
    import tempfile

    from mempo.run.push import export
    from mempo.run.push import push as push_run

    if (name is None) == (out is None):
        raise UserError("give a name on the hub, or a folder with --out")
    if out is not None:
        typer.echo(f"the policy and its card are in {export(run, out)}")
    elif name is not None:
        with tempfile.TemporaryDirectory() as work:
            push_run(run, name, Path(work), private=not public)
        typer.echo(f"https://huggingface.co/{name}")


@app.command()
def doctor(
    source: OptionalSource = None,
    overrides: Overrides = None,
) -> None:
    """Check machine, versions, disk, and what a configuration names; exit code 1 when something is missing."""
    from mempo.config import resolve
    from mempo.config.overrides import source_and_overrides
    from mempo.run.doctor import checks

    source, settings = source_and_overrides(source, overrides)
    failed = False
    for check in checks(resolve(source, settings) if source is not None or settings else None):
        typer.echo(check.line)
        failed |= check.status == "fail"
    if failed:
        raise typer.Exit(1)


@app.command()
def search(
    index: Annotated[
        str, typer.Argument(help="An index folder, or the address of a server, http://host:port.", show_default=False)
    ],
    query: Annotated[str, typer.Argument(help="What to look for.", show_default=False)],
    top_k: Annotated[int, typer.Option("--top-k", min=1, help="How many passages.")] = 5,
) -> None:
    """Search an index, or ask a server."""
    from mempo.retrieval.client import HttpRetriever, token_from_environment
    from mempo.retrieval.index import open_index

    is_server = "://" in index
    retriever = HttpRetriever(index, tries=1, token=token_from_environment()) if is_server else open_index(index)
    hits = retriever.retrieve([query], top_k)[0]
    if not hits:
        typer.echo("nothing was found")
    for n, hit in enumerate(hits, start=1):
        where = f"  {hit.document.url}" if hit.document.url else ""
        typer.echo(f"[{n}] {hit.document.title}  ({hit.score:.2f}){where}\n{hit.document.text}\n")


@app.command()
def serve(
    index: Annotated[Path, typer.Argument(help="An index folder.", show_default=False)],
    limits: Annotated[list[str] | None, key_values("Limits (docs/retrieval.md), such as max_queries=512.")] = None,
    host: Annotated[str, typer.Option(help="The address to listen on; the default is this machine alone.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8013,
    workers: Annotated[int, typer.Option(min=1, help="Processes; they share the index in memory.")] = 1,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of the numeric libraries in each; default: cores / workers.")
    ] = None,
) -> None:
    """Answer /retrieve and /access over HTTP, until SIGTERM. A token is read from MEMPO_RETRIEVAL_TOKEN."""
    from mempo.config.overrides import settings_from
    from mempo.config.retrieval import ServiceSettings

    settings = settings_from(ServiceSettings, limits or ())
    from mempo.retrieval.server.run import serve as run_service

    def say(line: str) -> None:
        typer.echo(line, err=True)

    run_service(index, host, port, workers, threads, settings, say)


@environment_app.command("atlas")
def atlas(
    out: Out,
    rendering: Annotated[str, typer.Option(help="prose or cards.")] = "prose",
    subset: Annotated[str, typer.Option(help="everything or toy.")] = "everything",
    objectives: Annotated[str, typer.Option(help="Numbers of objectives, such as 2,4,8.")] = "1",
    train_questions: Annotated[int, typer.Option("--train", min=0, help="Training questions.")] = 2000,
    test_questions: Annotated[int, typer.Option("--test", min=0, help="Test questions, of other entities.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Another seed, other questions.")] = 0,
    force: Force = False,
) -> None:
    """Write corpus.jsonl, train.jsonl and test.jsonl: real facts about countries, cities, elements and laureates."""
    from mempo.envs.atlas import write
    from mempo.envs.registry import make_atlas

    try:
        sizes = tuple(int(k) for k in objectives.split(","))
    except ValueError:
        raise UserError(f"--objectives {objectives!r} is not a list of whole numbers; write 2 or 2,4,8") from None
    environment = make_atlas(rendering=rendering, subset=subset)
    counts = write(
        out, environment, train=train_questions, test=test_questions, objectives=sizes, seed=seed, force=force
    )
    for name, lines in counts.items():
        typer.echo(f"{out / name}: {lines} lines")


@environment_app.command("maze")
def maze(
    out: Out,
    width: Annotated[int, typer.Option(min=1, help="Columns of the grid.")] = 4,
    height: Annotated[int, typer.Option(min=1, help="Rows of the grid.")] = 3,
    cells: Annotated[int | None, typer.Option(min=2, help="Cells of a maze; all of the grid by default.")] = None,
    loops: Annotated[int, typer.Option(min=0, help="Doors beyond those of a tree.")] = 1,
    junctions: Annotated[int | None, typer.Option(min=0, help="Most cells with three doors or more.")] = None,
    rendering: Annotated[str, typer.Option(help="prose or cards.")] = "prose",
    probe: Annotated[str, typer.Option(help="start_direction or path.")] = "start_direction",
    train_questions: Annotated[int, typer.Option("--train", min=0, help="Training mazes.")] = 2000,
    test_questions: Annotated[int, typer.Option("--test", min=0, help="Test mazes, of other layouts.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Another seed, other questions.")] = 0,
    force: Force = False,
) -> None:
    """Write train.jsonl and test.jsonl: mazes with a word at the goal, to be seen one cell at a time."""
    from mempo.envs.maze import write
    from mempo.envs.registry import make_maze

    shape = {"width": width, "height": height, "cells": cells, "loops": loops, "junctions": junctions}
    options = {**shape, "rendering": rendering, "probe": probe}
    environment = make_maze(**options)
    counts = write(out, environment, train=train_questions, test=test_questions, seed=seed, force=force)
    for name, lines in counts.items():
        typer.echo(f"{out / name}: {lines} lines")


def main() -> None:
    """Entry point: a `UserError` is one clear line and exit code 2; a signal ends with 128 and its number."""
    with quiet_interrupt():
        try:
            app()
        except UserError as error:
            typer.echo(f"mempo: {masked(str(error))}", err=True)
            sys.exit(2)
        except OSError as error:  # a folder that cannot be written, a full disk
            where = f" ({error.filename})" if error.filename else ""
            typer.echo(f"mempo: {error.strerror or str(error) or type(error).__name__}{where}", err=True)
            sys.exit(2)


if __name__ == "__main__":
    main()
