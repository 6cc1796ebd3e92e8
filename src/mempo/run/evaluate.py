"""`mempo eval`: agents over one policy, on the same questions, into a folder that outlives a kill."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from mempo.config import Config, Resolved, completed
from mempo.config.evaluate import AgentSpec, EvalSettings, agent_specs
from mempo.config.rollout import PromptSettings
from mempo.engine.model import load_policy, load_tokenizer, model_window
from mempo.engine.prefix_forward import SharedForward
from mempo.engine.scorer import LocalScorer
from mempo.errors import UserError, counted
from mempo.evaluate.agents import instructions
from mempo.evaluate.breakdown import breakdowns, metrics_by_objectives
from mempo.evaluate.compare import Asked, Entry, Report, compare
from mempo.evaluate.export import FORMATS, pair_texts
from mempo.evaluate.folder import (
    FREE_KEYS,
    EvalFolder,
    asked_of,
    refuse_changed_questions,
    weights_mark,
    without,
)
from mempo.evaluate.report import report_table, scores_table
from mempo.evaluate.resume import missing_jobs, play_missing, score_missing_notes
from mempo.evaluate.runner import EvalSetup, greedy_note
from mempo.progress import say
from mempo.rollout.agent import Agent
from mempo.rollout.interfaces import Sampler, Scorer
from mempo.rollout.question import Question
from mempo.rollout.render import Renderer, prompt_probe
from mempo.rollout.tokenizer import Tokenizer
from mempo.run.prompt_date import with_saved_date, with_todays_date
from mempo.setup import Data, check_window, custom_score, load_data, make_agent, make_sampler, make_tools
from mempo.storage.append import refuse_lost_arrays
from mempo.storage.files import write_atomic
from mempo.storage.run_folder import RunFolder

_MOST_FAILED = 0.8
"""A larger share of failed rollouts leaves no sample of the policy (`rl.max_failed_share` in training)."""


@dataclass(frozen=True)
class Opened:
    """A policy as far as it is known before its weights are loaded. `load` gives the sampler, and a scorer where there
    can be one; `record` says what a server can do and what it was asked (empty: there is none); `notes` what stands
    below the table; `close` is called at the end."""

    tokenizer: Tokenizer
    prompt: PromptSettings
    window: int | None
    identity: dict[str, Any]
    load: Callable[[], tuple[Sampler, Scorer | None]]
    close: Callable[[], None] = field(default=lambda: None)
    record: Callable[[], dict[str, Any]] = field(default=dict)
    notes: Callable[[], list[str]] = field(default=list)


def evaluate_model(
    resolved: Resolved, model_path: str, out: Path | None, console: Console, retry_errors: bool = False
) -> dict[int, dict[str, Any]]:
    """Evaluate a saved policy on the test questions of a configuration; metrics by number of objectives of the first
    agent.

    Raises:
        UserError: there are no test questions, the model cannot be loaded, `out` holds another evaluation.
    """
    return _into(resolved, open_local(resolved.config, model_path), out, console, retry_errors)


def evaluate_server(
    resolved: Resolved, out: Path | None, console: Console, retry_errors: bool = False
) -> dict[int, dict[str, Any]]:
    """The same for a model behind a server (`server.*`): without P(mem), which needs the policy's own log-probs.

    Raises:
        UserError: as `evaluate_model`, and when the server does not answer.
    """
    return _into(resolved, open_served(resolved.config, console), out, console, retry_errors)


def final_model(run: Path) -> Path:
    """The policy at the end of a run, or its newest checkpoint while it is under way; a model folder that keeps the
    configuration of its run (`mempo cluster convert`) is the policy itself.

    Raises:
        UserError: the run has neither.
    """
    if (run / "config.json").is_file():
        return run
    if (run / "final").is_dir():
        return run / "final"
    checkpoints = RunFolder(run).checkpoints()
    if not checkpoints:
        raise UserError(f"{run} has no checkpoint yet")
    return checkpoints[-1].path


def default_out(resolved: Resolved, source: str, run: Path | None) -> Path:
    """Where an evaluation goes when no folder is named: the same configuration of the same policy finds its folder
    again, and another one gets a new folder."""
    settings = without(resolved.plain(), FREE_KEYS)
    mark = weights_mark(Path(source)) if Path(source).is_dir() else ""
    text = json.dumps([mark or source, settings], sort_keys=True)  # a folder that was moved is the same policy
    name = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return run / "evaluations" / name if run is not None else Path("runs") / f"evaluation-{name}"


def played_so_far(out: Path) -> str:
    """What an evaluation that was stopped has saved, and how to resume it; half a sentence."""
    folder = EvalFolder(out)
    count = sum(len(folder.lines(name)) for name in folder.agents())
    return f"{count} rollouts are saved in {out}: the same command with --out {out} plays the rest"


# --- policies ------------------------------------------------------------------------------------------------------


def open_local(config: Config, model_path: str) -> Opened:
    """A policy in this process. Raises UserError: its tokenizer cannot be loaded."""
    tokenizer = load_tokenizer(model_path)
    folder = Path(model_path)

    def load() -> tuple[Sampler, Scorer | None]:
        policy = load_policy(config.model, model_path, tokenizer)
        forward = SharedForward(policy)
        return make_sampler(config, policy, forward), LocalScorer(policy, forward=forward)

    identity: dict[str, Any] = {"policy": str(folder.resolve()) if folder.is_dir() else model_path}
    if folder.is_dir():
        identity["weights"] = weights_mark(folder)
    return Opened(tokenizer, config.prompt, model_window(model_path), identity, load)


def open_served(config: Config, console: Console) -> Opened:
    """The policy behind `server.*`. Raises UserError: the server does not answer, or cannot be used."""
    from mempo.engine.server.capabilities import capability_notes  # its libraries are for those who use it
    from mempo.engine.server.connect import open_server

    if config.server is None:
        raise UserError("no server is named; set server.url, or use --server")
    opened = open_server(config.server, console, config.prompt)
    capabilities = opened.capabilities
    return Opened(
        tokenizer=opened.tokenizer,
        prompt=opened.prompt,
        window=capabilities.window_tokens,
        identity={"policy": f"served model {capabilities.model}"},
        load=lambda: (opened.sampler, None),
        close=opened.sampler.close,
        record=lambda: {"capabilities": capabilities.as_record(), "counts": opened.sampler.counts()},
        notes=lambda: capability_notes(capabilities.as_record()),
    )


# --- the evaluation ------------------------------------------------------------------------------------------------


def specs_of(config: Config) -> list[AgentSpec]:
    """The agents to compare; without `evaluate.agents` the configuration's own."""
    agent = config.agent
    names = config.evaluate.agents or (agent.context,)
    return agent_specs(names, agent.notes, agent.first_note, agent.context)


def agent_config(config: Config, spec: AgentSpec, prompt: PromptSettings) -> Config:
    """The configuration with the agent's own context, grammar, tools and prompt."""
    agent = config.agent.model_copy(
        update={"context": spec.context, "notes": spec.notes, "first_note": spec.first_note}
        | ({} if spec.tools else {"tools": ()})
    )
    limits = config.limits if spec.tools else config.limits.model_copy(update={"max_turns": 1})
    if spec.notes == "forbidden" and prompt.force_mem:
        prompt = prompt.model_copy(update={"force_mem": False})
    return config.model_copy(update={"agent": agent, "limits": limits, "prompt": prompt})


def agents_of(config: Config, specs: Sequence[AgentSpec], opened: Opened, data: Data) -> list[Agent]:
    """The agents, made before any weights are loaded, since they may refuse the configuration."""
    tools = make_tools(config, data.retriever) if any(spec.tools for spec in specs) else {}
    made = []
    for spec in specs:
        own = agent_config(config, spec, opened.prompt)
        mine, environment = (tools, data.environment) if spec.tools else ({}, None)
        agent = make_agent(own, opened.tokenizer, mine, environment)
        if config.evaluate.instructions:
            prompt = own.prompt.model_copy(update={"question": instructions(agent.grammar)})
            agent = make_agent(own.model_copy(update={"prompt": prompt}), opened.tokenizer, mine, environment)
        made.append(agent)
    return made


def _into(
    resolved: Resolved, opened: Opened, out: Path | None, console: Console, retry_errors: bool
) -> dict[int, dict[str, Any]]:
    try:
        if out is not None:
            return _evaluate(resolved, opened, EvalFolder(out), console, retry_errors)
        with tempfile.TemporaryDirectory() as folder:
            return _evaluate(resolved, opened, EvalFolder(Path(folder)), console, retry_errors)
    finally:
        opened.close()


def _evaluate(
    resolved: Resolved, opened: Opened, folder: EvalFolder, console: Console, retry_errors: bool
) -> dict[int, dict[str, Any]]:
    resolved = with_saved_date(resolved, folder.path)
    if not folder.exists():
        resolved = with_todays_date(resolved, opened.tokenizer)
    config = resolved.config
    opened = replace(opened, prompt=opened.prompt.model_copy(update={"date": config.prompt.date}))
    settings, specs = config.evaluate, specs_of(config)
    check_window(config, opened.window)
    with folder.locked(), tempfile.TemporaryDirectory() as work:
        data = load_data(config, Path(work), train_too=False)
        questions = _test_questions(data)
        for remark in data.remarks:
            say(console, remark)
        corpus = getattr(data.retriever, "corpus", None)
        identity = opened.identity | ({"corpus": corpus.sha256} if corpus is not None else {})
        identity["prompt"] = prompt_probe(Renderer(opened.tokenizer, opened.prompt))
        folder.refuse_changes(resolved.plain(), identity, completed)
        folder.refuse_other_agents(specs)
        missing = 0
        for spec in specs:
            lines = folder.lines(spec.file_name)
            refuse_changed_questions(lines, questions, folder.rollouts(spec.file_name))
            refuse_lost_arrays(folder.rollouts(spec.file_name))
            jobs = missing_jobs(lines, questions, settings, config.seed, retry_errors)
            missing += len(jobs)
            if lines:
                say(console, _found(spec, lines, len(jobs)))
        for note in greedy_note(settings) if missing else ():
            say(console, note)
        agents = agents_of(config, specs, opened, data)
        folder.begin(resolved.plain(), identity, specs, _asked(questions, settings), completed)
        sampler, scorer = opened.load()
        _record(folder, opened)
        try:
            for spec, agent in zip(specs, agents, strict=True):
                setup = EvalSetup(
                    agent=agent,
                    sampler=sampler,
                    scorer=scorer,
                    outcome=config.reward,
                    memory=config.memory,
                    seed=config.seed,
                    custom_score=custom_score(config),
                    window=opened.window,
                )
                play_missing(folder, spec, setup, questions, settings, retry_errors, console)
                score_missing_notes(folder, spec, setup, questions, console)
        finally:
            _record(folder, opened)  # also of a server that is given up
        metrics = _report(folder, [spec.file_name for spec in specs], config, console)
        for note in opened.notes():
            say(console, note)
        return metrics


def _record(folder: EvalFolder, opened: Opened) -> None:
    if record := opened.record():
        write_atomic(folder.path / "server.json", json.dumps(record, indent=1) + "\n")


def _test_questions(data: Data) -> list[Question]:
    if not data.test:
        raise UserError("there are no test questions; set data.test or data.environment")
    seen: set[str] = set()
    for question in data.test:
        if question.id in seen:
            raise UserError(f"two test questions have the id {question.id!r}; rollouts are identified by it")
        seen.add(question.id)
    return data.test


def _asked(questions: Sequence[Question], settings: EvalSettings) -> Asked:
    return Asked(Counter(len(question.objectives) for question in questions), settings.rollouts_per_question)


def _found(spec: AgentSpec, lines: dict[Any, dict[str, Any]], missing: int) -> str:
    errors = sum(bool(line["is_error"]) for line in lines.values())
    failed = f", {errors} of them failed for infrastructure reasons (--retry-errors plays them again)" if errors else ""
    there = f"{counted(len(lines), 'rollout')} {'is' if len(lines) == 1 else 'are'} there"
    return f"{spec.name}: {there}{failed}; {missing} to play"


def _report(folder: EvalFolder, names: Sequence[str], config: Config, console: Console) -> dict[int, dict[str, Any]]:
    """Write metrics and tables of everything in the folder, print the table."""
    agents = folder.agents()
    entries = {
        name: Entry(str(agent["name"]), list(folder.lines(name).values()), asked_of(agent))
        for name, agent in agents.items()
    }
    entries = {name: entry for name, entry in entries.items() if entry.lines}
    metrics = {e.label: metrics_by_objectives(e.lines, samples=e.asked.samples) for e in entries.values()}
    report = compare(list(entries.values()), seed=config.seed, notes=table_notes(folder, config.evaluate))
    parts = breakdowns(list(entries.values()), seed=config.seed)
    write_atomic(folder.path / "evaluation.json", json.dumps(metrics, indent=1) + "\n")
    write_tables(report, folder.path / "tables", parts=parts)
    print_report(report, title_of(config), console, parts=parts)
    lines = [line for name in names for line in entries[name].lines]
    failed = [line for line in lines if line["is_error"]]
    if len(failed) > _MOST_FAILED * len(lines):
        reason = next((line["error"] for line in reversed(failed) if line.get("error")), "no message")
        count = f"all {len(lines)}" if len(failed) == len(lines) else f"{len(failed)} of {len(lines)}"
        raise UserError(
            f"{count} rollouts failed for infrastructure reasons, the last with: {reason}; fix it, then repeat them "
            "with --retry-errors"
        )
    return metrics[entries[names[0]].label]


def title_of(config: Config) -> str:
    settings = config.evaluate
    decoding = "greedy" if settings.temperature == 0 else f"temperature {settings.temperature:g}"
    samples = settings.rollouts_per_question
    many = "" if samples == 1 else f", {samples} samples a question"
    return f"k objectives, mean over n questions [95 % interval], {decoding}{many}, seed {config.seed}"


def table_notes(folder: EvalFolder, settings: EvalSettings) -> list[str]:
    """What a reader of the table must know of how its rollouts were sampled. What is peculiar to a model server stands
    in its record of capabilities, under `notes`."""
    capabilities = folder.server_record().get("capabilities")
    notes = capabilities.get("notes") if isinstance(capabilities, Mapping) else None
    return [*greedy_note(settings), *map(str, notes or ())]


def print_report(
    report: Report, title: str, console: Console, more: Sequence[str] = (), parts: Mapping[str, Report] | None = None
) -> None:
    """`parts`: tables by what rows say of their questions, see `breakdowns`."""
    console.print(report_table(report, title))
    if more:
        console.print(scores_table(report, more))
    for text in (*pair_texts(report), *report.warnings):
        say(console, text)
    for key, part in (parts or {}).items():
        console.print(report_table(part, f"by {key}"))


def write_tables(
    report: Report, folder: Path, formats: Sequence[str] = tuple(FORMATS), parts: Mapping[str, Report] | None = None
) -> list[Path]:
    """The table in every format, `table.md` and so on, and those of `parts` as `by-KEY.md`; the files made."""
    made = []
    for name in formats:
        ending, write = FORMATS[name]
        for stem, one in {"table": report, **{f"by-{key}": part for key, part in (parts or {}).items()}}.items():
            made.append(folder / f"{stem}.{ending}")
            write_atomic(made[-1], write(one))
    return made
