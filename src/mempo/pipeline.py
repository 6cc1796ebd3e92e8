"""`mempo train`: demonstrations → SFT → evaluation of the start → RL → evaluation of the end → table."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from mempo.agent import Agent, Job
from mempo.build import (
    Data,
    check_window,
    custom_credit,
    custom_score,
    load_data,
    make_agent,
    make_sampler,
    make_tools,
)
from mempo.config import Config, Resolved
from mempo.demos import Demo, ExpertSettings, play
from mempo.engine.model import Policy, load_codec, load_policy, model_window, save_policy
from mempo.engine.scoring import LocalScorer
from mempo.engine.update import Updater
from mempo.errors import UserError
from mempo.evaluate.runner import EvalSetup, evaluate
from mempo.evaluate.table import evaluation_table
from mempo.question import Question
from mempo.runs.files import whole_folder, write_whole
from mempo.runs.folder import RunFolder
from mempo.tokens import Codec
from mempo.train.rl import RlSetup, train_rl
from mempo.train.sft import RowSource, demo_rows, mixed_batches, probe_row, take, train_sft
from mempo.train.state import last_checkpoint
from mempo.train.toy import toy_codec, toy_policy, with_warmup

STAGES = ("sft", "rl")


def train(resolved: Resolved, resume: bool, console: Console) -> Path:
    """Run every stage that the configuration asks for; returns the run folder.

    A resumed run goes on with the first stage that is not finished.
    """
    config = resolved.config
    began = time.monotonic()
    run = RunFolder(Path(config.output))
    scorer_of_user, credit_of_user = custom_score(config), custom_credit(config)
    if config.model.path:
        check_window(config, model_window(config.model.path))
    elif config.toy is not None:
        check_window(config, config.toy.window_tokens)
    else:
        raise UserError("there is no policy to train; set model.path or toy")
    if not resume and (run.path / "config.yaml").exists():
        raise UserError(f"{run.path} already holds a run; add --resume to go on with it, or set another output=…")
    if config.model.threads:
        torch.set_num_threads(config.model.threads)
    data = load_data(config, run.path / "data")
    run.begin(resolved.plain(), resume)
    tools = make_tools(config, data.retriever)
    console.print(f"[bold]run[/bold] {run.path}  seed {config.seed}", highlight=False)
    console.print(f"data: {len(data.train)} training questions, {len(data.test)} test questions", highlight=False)

    newest = run.checkpoints()[-1] if run.checkpoints() else None
    if newest is not None:
        run.forget_after(newest.stage, newest.step, STAGES)
        console.print(f"resuming after step {newest.step} of {newest.stage}", highlight=False)
    codec = _codec(config, data)
    agent = make_agent(config, codec, tools)
    if agent.renderer.difference:
        console.print(f"note: {agent.renderer.difference}", highlight=False, markup=False)
    policy = _policy(config, run, codec)
    results: list[tuple[str, Any]] = []

    rl_begun = last_checkpoint(run, "rl") is not None
    if config.sft.steps and not rl_begun:
        rows_at = sft_rows(config, data, agent, policy, console)
        train_sft(policy, rows_at, config.sft, run, console)
    setup = EvalSetup(
        agent=agent,
        sampler=make_sampler(config, policy),
        scorer=LocalScorer(policy),
        outcome=config.reward,
        memory=config.memory,
        seed=config.seed,
        custom_score=scorer_of_user,
    )
    results.append(("start", _evaluated("start", setup, config, data, run, console, redo=not rl_begun)))

    if config.rl.steps:
        start = run.path / "start"
        reference = None
        if config.rl.loss.kl != "none":
            if not (start / "config.json").exists():
                with whole_folder(start) as folder:
                    save_policy(policy, folder)
            reference = load_policy(config.model, str(start), codec)
        rl_setup = RlSetup(
            questions=data.train,
            agent=agent,
            sampler=setup.sampler,
            scorer=LocalScorer(policy),
            updater=Updater(policy, config.rl.optim, config.rl.loss, reference),
            outcome=config.reward,
            memory=config.memory,
            credit=config.credit,
            seed=config.seed,
            custom_score=scorer_of_user,
            custom_credit=credit_of_user,
        )
        train_rl(rl_setup, config.rl, run, console)
        results.append(("after RL", _evaluated("final", setup, config, data, run, console)))
    with whole_folder(run.path / "final") as folder:
        save_policy(policy, folder)
    _report(results, config, run, console, time.monotonic() - began)
    return run.path


def _codec(config: Config, data: Data) -> Codec:
    if config.model.path:
        return load_codec(config.model.path)
    assert data.world is not None  # config.check: a toy has a world
    texts = [document.text for document in data.world.documents()]
    questions = [question.text for question in (*data.train[:200], *data.test[:200])]
    return toy_codec([*texts, *questions], toy_words(config))


def toy_words(config: Config) -> list[str]:
    """The fixed sentences that the toy policy meets."""
    expert = config.sft.expert
    words = [expert.nothing, expert.unknown, expert.think_answer, config.memory.probe.thought, expert.separator]
    words += [expert.think_search.replace("{query}", "\n"), expert.open.replace("{queries}", "\n"), "nothing was found"]
    return [*words, *(f"{n} " for n in range(1, config.search.top_k + 1))]


def _policy(config: Config, run: RunFolder, codec: Codec) -> Policy:
    """The newest state of this run, else the start that the configuration names."""
    found = run.checkpoints()
    if found:
        return load_policy(config.model, str(found[-1].path), codec)
    if config.toy is not None:
        return toy_policy(codec, config.toy, config.seed)
    return load_policy(config.model, codec=codec)


def sft_rows(config: Config, data: Data, agent: Agent, policy: Policy, console: Console) -> RowSource:
    """Let the expert play and turn its episodes into rows; the toy's copying is mixed in."""
    settings = config.sft
    questions = take(data.train, 0, settings.demos, f"{config.seed} demos")
    full = make_agent(config, agent.renderer.codec, dict(agent.tools), context="full")
    rng = random.Random(f"{config.seed} full share")
    told_in_full = [rng.random() < settings.full_share for _ in questions]
    demos = [
        *_episodes(agent, [q for q, f in zip(questions, told_in_full, strict=True) if not f], settings.expert, config),
        *_episodes(full, [q for q, f in zip(questions, told_in_full, strict=True) if f], settings.expert, config),
    ]
    probes = []
    if settings.probe_share:
        sources = demos
        if settings.lossless_probes and settings.expert.loss:
            lossless = settings.expert.model_copy(update={"loss": 0.0})
            sources = _episodes(agent, questions, lossless, config)
        found = [
            probe_row(agent.renderer.codec, demo, turn.index, config.memory.probe)
            for demo in sources
            for turn in demo.trajectory.turns
        ]
        probes = [row for row in found if row is not None]
    rows = demo_rows(demos)
    console.print(f"demonstrations: {len(demos)} episodes, {len(rows)} rows, {len(probes)} probe samples", highlight=False)
    rows_at = mixed_batches(rows, probes, settings, config.seed)
    return with_warmup(rows_at, policy.codec, config.toy, config.seed) if config.toy else rows_at


def _episodes(agent: Agent, questions: Sequence[Question], expert: ExpertSettings, config: Config) -> list[Demo]:
    notes = config.agent.notes != "forbidden"
    jobs = [Job(question, i, (config.seed, "demos")) for i, question in enumerate(questions)]
    # The noise of an expert must not depend on the limits that training sets for a policy.
    roomy = dataclasses.replace(agent, limits=agent.limits.model_copy(update={"max_turn_tokens": 100_000}))
    return asyncio.run(play(roomy, jobs, expert, notes))


def _evaluated(
    name: str, setup: EvalSetup, config: Config, data: Data, run: RunFolder, console: Console, redo: bool = True
) -> dict[int, dict[str, float | None]]:
    """Measures by number of objectives; kept in `evaluation-NAME.json`, so that a resumed run has them too."""
    file = run.path / f"evaluation-{name}.json"
    if file.exists() and not redo:
        return {int(k): v for k, v in json.loads(file.read_text("utf-8")).items()}
    if not data.test:
        return {}
    result = evaluate(setup, data.test, config.evaluate, run.rollouts(f"eval-{name}", 0))
    table = result.by_objectives()
    write_whole(file, json.dumps(table, indent=1))
    return table


def _report(
    results: Sequence[tuple[str, Any]], config: Config, run: RunFolder, console: Console, seconds: float
) -> None:
    decoding = "greedy" if config.evaluate.temperature == 0 else f"temperature {config.evaluate.temperature:g}"
    title = f"held-out questions, {decoding}, seed {config.seed}"
    if any(measures for _, measures in results):
        console.print(evaluation_table(results, title))
    console.print(f"{seconds:.0f} s in all; everything is in {run.path}", highlight=False)
