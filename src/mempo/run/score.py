"""`mempo score` and `mempo compare`: saved rollouts scored again and set side by side, without a model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from mempo.config import Config, resolve, settings_from
from mempo.config.rewards import OutcomeSettings
from mempo.config.server import JudgeSettings
from mempo.errors import ConfigError, UserError, nearest
from mempo.evaluate.breakdown import breakdowns, metrics_by_objectives
from mempo.evaluate.compare import Asked, Entry, Report, compare
from mempo.evaluate.export import FORMATS
from mempo.evaluate.figures import save_figures
from mempo.evaluate.folder import EvalFolder, asked_of
from mempo.evaluate.judging import judge_file
from mempo.evaluate.rescore import metric_names
from mempo.evaluate.saved import collector_at_rest, scored_lines
from mempo.progress import say
from mempo.run.evaluate import print_report, table_notes, write_tables
from mempo.storage.files import dump_line, write_atomic
from mempo.storage.outputs import output_files, refuse_taken
from mempo.storage.read_files import DamagedFile, exists
from mempo.storage.run_folder import EVALUATIONS, changed_keys

_SCORED_BY = "mempo score"
_ALIKE = ("agent", "data", "evaluate", "limits", "prompt", "reward", "search", "access", "seed")
"""Settings that two evaluations should share to be compared."""


class Source(NamedTuple):
    """A file of rollouts, what it is called in a table, and what was asked for where that is known."""

    label: str
    file: Path
    asked: Asked = Asked()


def sources_of(path: Path) -> list[Source]:
    """The rollout files of an evaluation folder (one an agent), of a training run (its evaluations), or the one named.

    Raises:
        UserError: there are none.
    """
    if path.is_file():
        return [Source(path.stem, path)]
    folder = EvalFolder(path)
    agents = folder.agents().items()
    found = [Source(str(agent["name"]), folder.rollouts(name), asked_of(agent)) for name, agent in agents]
    found += [Source(label, path / "rollouts" / f"{name}.jsonl") for name, label in EVALUATIONS.items()]
    found = [source for source in found if exists(source.file)]
    if not found:
        what = "holds no rollouts of an evaluation" if path.is_dir() else "does not exist"
        raise UserError(f"{path} {what}; name a folder of mempo eval, a training run, or a .jsonl file of rollouts")
    return found


def config_of(path: Path, overrides: Sequence[str] = ()) -> Config:
    """The configuration that rollouts were made with; the default one beside a lone file."""
    has_own = path.is_dir() and exists(path / "config.yaml")
    return resolve(str(path) if has_own else None, overrides).config


def judge_settings(url: str, model: str | None) -> JudgeSettings:
    """A judge behind a server. Raises UserError: no address of a server."""
    try:
        return settings_from(JudgeSettings, (), {"server": {"url": url, "model": model}})
    except ConfigError as error:
        raise UserError(f"--judge: {error}") from None


@collector_at_rest()
def score_run(
    path: Path,
    scorers: Sequence[str],
    overrides: Sequence[str],
    out: Path | None,
    per_rollout: bool,
    judge: Any,
    console: Console,
    force: bool = False,
) -> Report:
    """Score saved rollouts again, print the table, write `scores.json` (and a line a rollout where asked) into `out`.
    What is there already is treated as `mempo.storage.outputs` says.

    `judge`: settings of an LLM judge, or None; its verdicts are kept beside the rollouts.

    Raises:
        UserError: no rollouts, damaged ones, a folder that cannot be written.
    """
    config = config_of(path, overrides)
    sources = sources_of(path)
    folder = out or (path if path.is_dir() else path.parent)
    names = ["scores.json", *(f"scores/{source.file.stem}.jsonl" for source in sources if per_rollout)]
    refuse_taken(folder, names, "scores", _SCORED_BY, force, _scores_of_earlier_release)
    if judge is not None:
        for source in sources:
            judge_file(source.file, _lines(source.file, (), config.reward), judge, console)
    more = metric_names(scorers)
    entries, metrics, files = [], {}, {}
    for label, file, asked in sources:
        lines = _lines(file, scorers, config.reward)
        entries.append(Entry(label, lines, asked))
        extra = [*more, *(["judge"] if any("judge" in line for line in lines) else [])]
        metrics[label] = metrics_by_objectives(lines, extra, asked.samples)
        if per_rollout:
            kept = ("question_id", "rollout", "answer", "gold", "is_error", *_SCORES, *extra)
            text = "".join(dump_line({name: line[name] for name in kept if name in line}) for line in lines)
            files[f"scores/{file.stem}.jsonl"] = text
    report = compare(entries, more, config.seed, notes=_notes(path, config))
    record = {"scorers": list(scorers), "reward": config.reward.model_dump(mode="json"), "measures": metrics}
    files["scores.json"] = json.dumps(record, indent=1) + "\n"
    with output_files(folder, "scores", _SCORED_BY, force, _scores_of_earlier_release) as made:
        for name, text in files.items():
            write_atomic(made / name, text)
    title = f"k objectives, mean over n questions [95 % interval], scored with {', '.join(scorers)}"
    print_report(report, title, console, more, breakdowns(entries, more, config.seed))
    say(console, f"scores are in {folder / 'scores.json'}")
    return report


def _scores_of_earlier_release(folder: Path) -> list[str]:
    """The files of scores that kept no record of them."""
    try:
        record = json.loads((folder / "scores.json").read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return []
    if not (isinstance(record, dict) and record.keys() == {"scorers", "reward", "measures"}):
        return []
    return ["scores.json", *(f"scores/{file.name}" for file in (folder / "scores").glob("*.jsonl"))]


_SCORES = ("score", "em", "f1", "sub_em", "mean_em", "mean_f1", "objective_em", "objective_f1", "objective_sub_em")


OVER_QUESTIONS = (
    "intervals and p are over questions: they hold no noise of training, so they say nothing of how another seed of "
    "these runs would have done (mempo study runs several)"
)


@collector_at_rest()
def compare_runs(
    paths: Sequence[Path],
    scorers: Sequence[str],
    agents: Sequence[str],
    formats: Sequence[str],
    out: Path | None,
    console: Console,
    force: bool = False,
) -> Report:
    """Set the agents of several folders side by side; every answer is scored again, with the settings of the first.

    `agents`: only these. `formats`: of `FORMATS`, printed instead of the table for the terminal; with `out` tables in
    these formats (all, without any) and figures are written there.

    Raises:
        UserError: no rollouts, an agent or format that is not there.
    """
    for name in formats:
        if name not in (*FORMATS, "terminal"):
            known = ("terminal", *FORMATS)
            raise UserError(f"unknown format {name!r}{nearest(name, known)}; known: {', '.join(known)}")
    configs = [config_of(path) for path in paths]
    reward, more = configs[0].reward, metric_names(scorers)
    chosen = [(path, source) for path in paths for source in sources_of(path) if _wanted(source, agents)]
    if not chosen:
        known = ", ".join(dict.fromkeys(source.label for path in paths for source in sources_of(path)))
        raise UserError(f"no agent {', '.join(agents)} in {', '.join(map(str, paths))}; there are: {known}")
    labels = _labels(chosen)
    entries = [
        Entry(label, _lines(source.file, scorers, reward), source.asked)
        for label, (_, source) in zip(labels, chosen, strict=True)
    ]
    notes = [f"{path}: {note}" for path, config in zip(paths, configs, strict=True) for note in _notes(path, config)]
    others = zip(paths[1:], configs[1:], strict=True)
    notes += [text for path, other in others if (text := _differences(paths[0], configs[0], path, other))]
    if len({path.resolve() for path in paths}) > 1:
        notes.append(OVER_QUESTIONS)
    report = compare(entries, more, configs[0].seed, notes=notes)
    parts = breakdowns(entries, more, configs[0].seed)
    written = [name for name in formats if name != "terminal"]
    if not formats or "terminal" in formats:
        print_report(report, "k objectives, mean over n questions [95 % interval]", console, more, parts)
    for name in written:
        console.out(FORMATS[name][1](report), highlight=False)
    if out is not None:
        with output_files(out, "comparison", "mempo compare", force) as folder:
            files = write_tables(report, folder, written or list(FORMATS), parts)
            figures = save_figures(report, folder)
        say(console, f"tables and figures are in {out}: {', '.join([*(file.name for file in files), *figures])}")
    return report


def _notes(path: Path, config: Config) -> list[str]:
    return table_notes(EvalFolder(path), config.evaluate) if (path / "config.yaml").is_file() else []


def _lines(file: Path, scorers: Sequence[str], reward: OutcomeSettings) -> list[dict[str, Any]]:
    try:
        lines = scored_lines(file, scorers, reward)
    except DamagedFile:
        raise
    except UserError as error:
        raise UserError(f"{file}: {error}") from None
    if not lines:
        raise UserError(f"{file} holds no rollouts")
    return lines


def _wanted(source: Source, agents: Sequence[str]) -> bool:
    return not agents or source.label in agents


def _labels(chosen: Sequence[tuple[Path, Source]]) -> list[str]:
    """The agent alone where one folder is looked at; else the folder's name before it, or as much of its path as tells
    folders apart."""
    paths = list(dict.fromkeys(path for path, _ in chosen))
    if len(paths) == 1:
        return [source.label for _, source in chosen]
    names = {path: path.resolve().name for path in paths}
    if len(set(names.values())) < len(paths):
        names = {path: str(path) for path in paths}
    return [names[path] if path.is_file() else f"{names[path]}/{source.label}" for path, source in chosen]


def _differences(first: Path, one: Config, second: Path, other: Config) -> str:
    """A remark on settings that make two evaluations hard to compare."""
    old, new = (
        {key: value for key, value in config.model_dump(mode="json").items() if key in _ALIKE}
        for config in (one, other)
    )
    changed = [line for line in changed_keys(old, new) if not line.startswith(("evaluate.agents", "evaluate.max_"))]
    if not changed:
        return ""
    shown = "; ".join(changed[:6]) + (f"; and {len(changed) - 6} more" if len(changed) > 6 else "")
    return f"{first} and {second} were made with other settings: {shown}"
