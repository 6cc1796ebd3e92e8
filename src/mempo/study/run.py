"""`mempo study`: make the runs that are missing, then tables and figures of all that are there."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from mempo.errors import UserError
from mempo.progress import Progress, say
from mempo.storage.atomic import lone_process
from mempo.storage.files import write_atomic
from mempo.study.compare import cpu_seconds, sections
from mempo.study.figures import save_figures
from mempo.study.plan import Task, plan
from mempo.study.pool import Died, make_pool
from mempo.study.record import RESULTS, Record, add_record, read_records
from mempo.study.settings import Study, read_study
from mempo.study.table import markdown, on_screen
from mempo.study.watch import Watch
from mempo.study.work import Failure, work

Work = Callable[[Task], Record | Failure]


@dataclass(frozen=True)
class StudyOptions:
    """`out` None: `runs/study-NAME`. `only`: these arms; none: all. `workers` None: as many as there are cores.
    `full`: the seeds that the file names for it. `settings`: KEY=VALUE of every run, which win."""

    out: Path | None = None
    only: tuple[str, ...] = ()
    workers: int | None = None
    full: bool = False
    dry_run: bool = False
    settings: tuple[str, ...] = ()


def run_study(source: str, options: StudyOptions, console: Console, make: Work | None = None) -> list[Record]:
    """The results of the study's runs, those made now and those that were there. `make` makes a run, in a process of
    its own where several are at work; None: `work`.

    Raises:
        UserError: what is wrong with the file, before anything runs; or runs that failed, after all others were made.
    """
    name, study = read_study(source)
    study = study.longer() if options.full else study
    out = options.out or Path("runs") / f"study-{name}"
    every = plan(study, out, options.settings)
    tasks = plan(study, out, options.settings, options.only) if options.only else every
    workers = options.workers or _cores()
    if options.dry_run:
        _print_plan(tasks, read_records(out), workers, out, console)
        return []
    _refuse_foreign(out)
    with lone_process(
        out,
        lambda error: f"--out {str(out)!r} cannot be written ({error}); choose another",
        f"another process is at work on the study in {out}; wait for it, or choose another --out",
    ):
        _mark_as_study(out)
        failures = _make(tasks, out, min(workers, len(tasks)), console, make or work)
        done = _report(name, study, every, out, console)  # with what other calls have made
    if failures:
        task, reason = failures[0]
        raise UserError(
            f"{len(failures)} of {len(tasks)} runs did not end; the first, {task.title}: {reason}. The others are "
            "kept; the same command tries these again"
        )
    return [record for _, record in done]


def _mark_as_study(out: Path) -> None:
    """The folder says that it is a study's as soon as it is one."""
    (out / RESULTS).touch()
    (out / "runs").mkdir(exist_ok=True)


def _refuse_foreign(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out} is a file; name a folder")
    if out.is_dir() and not (out / RESULTS).exists() and any(file.name != ".lock" for file in out.iterdir()):
        raise UserError(f"--out {out} holds files that do not belong to a study (no {RESULTS}); choose another folder")


def _make(tasks: Sequence[Task], out: Path, workers: int, console: Console, make: Work) -> list[tuple[Task, str]]:
    """Make what is missing; runs that failed, with the reason."""
    done = set(read_records(out))
    waiting = [task for task in tasks if task.key not in done]
    cached, failures = len(tasks) - len(waiting), []
    say(console, f"study in {out}: {len(tasks)} runs, {cached} of them there already, {workers} at a time")
    if waiting:
        say(console, f"each run writes all that it says into a .log of its own in {out / 'runs'}")
    made = cached
    with (
        make_pool(workers, make) as pool,
        Progress(console, "study", len(tasks), "run", cached) as progress,
        Watch(progress, cached) as watch,
    ):
        while waiting or pool.busy:
            ready = [task for task in waiting if task.after is None or task.after in done]
            while ready and pool.room:
                task = ready.pop(0)
                waiting.remove(task)
                pool.give(task)
                watch.begun(task)
            if not pool.busy:  # what is left needs a start that failed
                return [*failures, *((task, "its start did not end") for task in waiting)]
            task, result = pool.next_done()
            watch.done(task, made=not isinstance(result, Failure | Died))
            if isinstance(result, Failure | Died):
                reason = result.reason if isinstance(result, Failure) else str(result)
                failures.append((task, reason))
                say(console, f"failed: {task.title}: {reason}")
                continue
            add_record(out, result)
            done.add(task.key)
            made += 1
            say(console, f"[{made}/{len(tasks)}] {task.title}: {_summary(result)}")
    return failures


def _report(name: str, study: Study, tasks: Sequence[Task], out: Path, console: Console) -> list[tuple[Task, Record]]:
    records = read_records(out)
    done = [(task, records[task.key]) for task in tasks if task.key in records]
    found = sections(done, study.compared_with)
    figures = save_figures(done, found, out)
    write_atomic(out / "tables.md", markdown(name, found, study.compared_with, figures))
    console.print(on_screen(found, study.compared_with))
    for file in figures:
        if file == "curves.png":
            say(console, f"curves of every arm: {out / file}")
    say(console, f"{RESULTS}, tables.md and all figures are in {out}")
    return done


def _summary(record: Record) -> str:
    ems = [f"EM@{k} {100 * found['em']:.0f}" for k, found in record["evaluation"].items() if found["em"] is not None]
    seconds = record["seconds"]
    took = [] if seconds is None else [f"{seconds['cpu']:.0f} s CPU", f"{seconds['wall']:.0f} s"]
    return ", ".join([*ems, *took])


def _print_plan(
    tasks: Sequence[Task], records: Mapping[str, Record], workers: int, out: Path, console: Console
) -> None:
    """The runs, which of them are there, and how long the others will take, going by those."""
    expected: list[float | None] = []
    for task in tasks:
        if task.key in records:
            state = "there already"
        else:
            expected.append(expected_seconds(task, list(records.values())))
            begun = "goes on" if (task.folder / "config.yaml").is_file() else "to do"
            state = begun if expected[-1] is None else f"{begun}, about {expected[-1]:.0f} s"
        say(console, f"{task.title}: {state}")
    known = [seconds for seconds in expected if seconds is not None]
    say(console, f"{len(tasks)} runs, {len(expected)} to do, {workers} at a time, into {out}")
    if known:
        rest = sum(known) + statistics.mean(known) * (len(expected) - len(known))
        say(
            console,
            f"expected: {rest / 60:.0f} CPU minutes, {rest / 60 / min(workers, len(expected)):.0f} minutes in all",
        )
    elif expected:
        say(console, "expected time: not known before a run of the study has ended here")


def expected_seconds(task: Task, records: Sequence[Record]) -> float | None:
    """The median CPU seconds of finished runs of the same arm from the same start; else of any arm from it, else of any
    run of its kind."""
    same_kind = [record for record in records if (record["arm"] is None) == (task.arm is None)]
    same_start = [record for record in same_kind if record["start"] == task.start]
    same_arm = [record for record in same_start if record["arm"] == task.arm]
    for group in (same_arm, same_start, same_kind):
        if known := [seconds for record in group if (seconds := cpu_seconds(record)) is not None]:
            return statistics.median(known)
    return None


def _cores() -> int:
    """Those that this process may use, where the system says so."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
