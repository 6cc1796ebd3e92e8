"""`mempo train`: demonstrations → SFT, or the start of another run → its evaluation → RL → evaluation → table."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NotRequired

import torch
from pydantic import ConfigDict, StringConstraints, TypeAdapter, with_config
from rich.console import Console
from typing_extensions import TypedDict

from mempo.config import Config, Resolved, completed
from mempo.config.extending import may_change, refuse_shorter, remarks
from mempo.config.train import ToySettings
from mempo.engine.lora import add_lora, is_adapter_folder, merge_lora, require_peft
from mempo.engine.model import load_policy, load_tokenizer, model_window, pick_device, save_policy, set_update_mode
from mempo.engine.policy import Policy
from mempo.engine.prefix_forward import SharedForward
from mempo.engine.scorer import LocalScorer
from mempo.engine.update import Updater
from mempo.engine.vllm import require_vllm
from mempo.errors import UserError
from mempo.evaluate.breakdown import metrics_by_objectives
from mempo.evaluate.report import ByObjectives, evaluation_table
from mempo.evaluate.runner import EvalSetup, evaluate, greedy_note
from mempo.progress import say
from mempo.rollout.render import Renderer, prompt_probe
from mempo.rollout.tokenizer import Tokenizer
from mempo.run.prompt_date import with_saved_date, with_todays_date
from mempo.run.trackers import check_trackers, tracked
from mempo.setup import (
    Data,
    advantage_function,
    check_window,
    custom_score,
    load_data,
    make_agent,
    make_sampler,
    make_scoring,
    make_tools,
)
from mempo.storage.atomic import atomic_folder
from mempo.storage.files import write_atomic
from mempo.storage.read_files import exists, read_json
from mempo.storage.run_folder import PROMPTS, Checkpoint, RunFolder
from mempo.train.checkpoint import saving
from mempo.train.demonstrations import checked_probe, sft_rows, tokenizer_of_toy
from mempo.train.rl import RlSetup, check_questions, train_rl
from mempo.train.sft import train_sft
from mempo.train.start import borrow_evaluation, refuse_other_vocabulary, start_model
from mempo.train.start_check import check_start
from mempo.train.tiny_model import toy_policy

STAGES = ("sft", "rl")


@with_config(ConfigDict(extra="allow"))
class _Metrics(TypedDict):
    """Of one number of objectives; those that the table shows are numbers."""

    questions: NotRequired[float | None]
    em: NotRequired[float | None]
    f1: NotRequired[float | None]
    format_ok: NotRequired[float | None]
    note_tokens: NotRequired[float | None]
    peak_context_tokens: NotRequired[float | None]
    total_tokens: NotRequired[float | None]
    turns: NotRequired[float | None]
    errors: NotRequired[float | None]


_OBJECTIVES = Annotated[str, StringConstraints(pattern="^[1-9][0-9]{0,5}$")]
_EVALUATION = TypeAdapter(dict[_OBJECTIVES, _Metrics])


def train(resolved: Resolved, resume: bool, console: Console) -> Path:
    """Run every stage that the configuration asks for; returns the run folder.

    A resumed run begins with the stage and the step after its newest checkpoint.

    Raises:
        UserError: anything that is the user's to fix, before the model loads where that can be known; or there is
            nothing left to do.
    """
    run = RunFolder(Path(resolved.config.output))
    if resume:
        resolved = with_saved_date(resolved, run.path)
    run.check(resolved.plain(), resume, completed, may_change(_newest_stage(run)))
    with run.locked(), tracked(run, resolved.config.track):
        return _train(resolved, run, resume, console)


def where_it_stands(resolved: Resolved) -> str:
    """What a run that was stopped has saved, and how to resume it; half a sentence."""
    path = Path(resolved.config.output)
    checkpoints = RunFolder(path).checkpoints()
    if checkpoints:
        newest = checkpoints[-1]
        return f"step {newest.step} of {newest.stage} is saved: mempo train {path} --resume continues from there"
    return "no step was done yet: the same command starts again"


def _newest_stage(run: RunFolder) -> str | None:
    found = run.checkpoints()
    return found[-1].stage if found else None


def _train(resolved: Resolved, run: RunFolder, resume: bool, console: Console) -> Path:
    newest = run.checkpoints()[-1] if resume and run.checkpoints() else None
    free = may_change(newest.stage if newest else None)
    # Again under the lock: another process may have begun here meanwhile.
    resume = run.check(resolved.plain(), resume, completed, free)
    old = completed(run.config()) if resume else resolved.plain()
    if resume:
        _refuse_nothing_left(run, newest, old, resolved.config)
    config, began = resolved.config, time.monotonic()
    advantage_function(config)  # refuses what it must before anything is made
    score_of_user = custom_score(config)
    check_trackers(config)
    if config.cluster is not None and config.rl.steps:
        raise UserError(
            f"this configuration is for {config.cluster.gpus} GPUs under verl (cluster.*); start it with mempo cluster "
            "launch, or set cluster=null to train in this process"
        )
    if config.server is not None:
        raise UserError("a model behind a server cannot be trained; set server=null and model.path, or use mempo eval")
    if not config.model.path and config.toy is None and not config.start:
        raise UserError("there is no policy to train; set model.path or toy, or start")
    if config.start:
        origin = None if newest else start_model(config.start)  # a checkpoint of its own needs no other run
    else:
        origin = config.model.path
    _check_adapters(config, origin)
    if config.sampler.engine == "vllm":
        require_vllm()
    start = str(newest.path) if newest else origin
    tokenizer = load_tokenizer(start) if start else None  # before the data: it takes no time, and may be what is wrong
    check_window(config, model_window(start) if start else (config.toy or ToySettings()).window_tokens)
    data = load_data(config, run.path / "data")
    check_questions(data.train, config.rl)
    say(console, f"run {run.path}, seed {config.seed}")
    say(console, f"data: {len(data.train)} training questions, {len(data.test)} test questions")
    for remark in data.remarks:
        say(console, remark)

    tools = make_tools(config, data.retriever)
    tokenizer = tokenizer or tokenizer_of_toy(config, data, tools)
    if config.start:
        refuse_other_vocabulary(config, data, tokenizer, tools)
    if not resume:
        if config.start:  # the prompts that its policy learnt on
            source = Path(config.start)
            in_run = source.parent.name == "checkpoints"
            resolved = with_saved_date(resolved, source.parents[1] if in_run else source)
        resolved = with_todays_date(resolved, tokenizer)
        config = resolved.config
    agent = make_agent(config, tokenizer, tools, data.environment)  # before the model: it may refuse
    in_rl = newest is not None and newest.stage == "rl"
    learns = config.sft.steps and not in_rl and not config.start
    demonstrated = sft_rows(config, data, agent, console) if learns else None  # before the model: they may be refused
    policy = load_policy(config.model, start, tokenizer) if start else _new_toy(config, tokenizer)
    if config.model.lora and policy.adapter is None:
        policy = add_lora(policy, config.model.lora, config.seed, _lasting(origin))
    asked_otherwise = resume and old["evaluate"]["questions"] != config.evaluate.questions
    marks = fingerprints(data, agent.renderer)
    # Before the configuration: a resumed run may be refused, and one that begins says whose folder it is. Not earlier:
    # what failed until here leaves nothing behind.
    run.refuse_other_data(marks, resume, ("test questions",) if asked_otherwise else ())
    run.begin(resolved.plain(), resume, completed, free)
    if resume:
        for remark in remarks(old, config, newest.stage if newest else None, newest.step if newest else 0):
            say(console, remark)
        stage, step = (newest.stage, newest.step) if newest else (STAGES[0], 0)
        run.forget_after(stage, step, STAGES)
        if stage != "rl":  # it is made again below; what is there may be of another policy
            (run.path / "evaluation-start.json").unlink(missing_ok=True)
        say(console, f"resuming after step {step} of {stage}")
    if agent.renderer.difference:
        say(console, f"note: {agent.renderer.difference}")
    if demonstrated is not None:
        train_sft(policy, demonstrated, config.sft, run, console)
        if config.rl.steps:
            policy = _adapter_of_rl(config, policy, run)

    forward = SharedForward(policy)
    scorer = LocalScorer(policy, forward=forward)
    setup = EvalSetup(
        agent=agent,
        sampler=make_sampler(config, policy, forward),
        scorer=scorer,
        outcome=config.reward,
        memory=config.memory,
        seed=config.seed,
        custom_score=score_of_user,
        window=policy.window,
    )
    borrowed = not in_rl and borrow_evaluation(resolved, marks, run.path)
    results = [("start", _evaluated("start", setup, config, data, run, console, redo=not in_rl and not borrowed))]
    if config.rl.steps:
        reference = _reference(config, policy, run, in_rl)
        anchored = config.rl.loss.kl != "none"
        rl_setup = RlSetup(
            questions=data.train,
            agent=agent,
            sampler=setup.sampler,
            scorer=scorer,
            updater=Updater(policy, config.rl.optim, config.rl.loss, reference if anchored else None),
            scoring=make_scoring(config, agent, policy.window),
            seed=config.seed if config.rl.seed is None else config.rl.seed,
            reference=LocalScorer(reference) if reference else None,
        )
        if config.rl.memory_signal and config.rl.probe_check_questions and not in_rl:
            check = checked_probe(config, data, agent, scorer, run.path)
            say(console, check.report, style=None if check.separates else "yellow")
            start_check = check_start(rl_setup, config.rl, console)
            write_atomic(run.path / "start-check.json", json.dumps(dataclasses.asdict(start_check), indent=1) + "\n")
            say(console, start_check.report)
        train_rl(rl_setup, config.rl, run, console)
        results.append(("after RL", _evaluated("final", setup, config, data, run, console)))
    _save_policy(policy, run.path / "final")
    _print_table(results, config, console)
    say(console, f"{time.monotonic() - began:.0f} s in all; everything is in {run.path}")
    return run.path


def fingerprints(data: Data, renderer: Renderer) -> dict[str, str]:
    """What the questions, the corpus and the prompts are, so that a run is not resumed with others."""
    found = {PROMPTS: prompt_probe(renderer)["ids"]}
    for name, questions in (("training questions", data.train), ("test questions", data.test)):
        text = json.dumps([(q.id, q.text, q.gold, q.probe) for q in questions])
        found[name] = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    corpus = getattr(data.retriever, "corpus", None)
    if corpus is not None:
        found["corpus"] = corpus.sha256
    return found


def _new_toy(config: Config, tokenizer: Tokenizer) -> Policy:
    """A toy policy as it begins, where `model.device` wants it: a resumed run loads it there too."""
    if config.model.threads:
        torch.set_num_threads(config.model.threads)
    policy = toy_policy(tokenizer, config.toy or ToySettings(), config.seed)
    policy.model.to(device=pick_device(config.model.device), dtype=getattr(torch, config.model.dtype))  # type: ignore[call-overload]
    return set_update_mode(policy, config.model)


def _check_adapters(config: Config, path: str | None) -> None:
    """What can be said about adapters before anything is loaded; `path` is the model that the run begins with."""
    if path and is_adapter_folder(path):
        key = "start" if config.start else "model.path"
        raise UserError(
            f"{key} {path} is an adapter, not a model; give a model with the adapter merged into it, such as the "
            "final/ of a run"
        )
    if config.model.lora:
        require_peft()


def _lasting(path: str | None) -> str:
    """A path that means the same from anywhere; a hub name stays."""
    return str(Path(path).resolve()) if path and Path(path).exists() else str(path)


def _adapter_of_rl(config: Config, policy: Policy, run: RunFolder) -> Policy:
    """RL trains an adapter of its own, on the weights that SFT ended with: without it the policy is what RL started
    from. Those weights are kept in `start/`, where the checkpoints of RL find them."""
    if config.model.lora is None:
        return policy
    policy = merge_lora(policy)
    _save_policy(policy, run.path / "start")
    return add_lora(policy, config.model.lora, config.seed + 1, "../../start")


def _reference(config: Config, policy: Policy, run: RunFolder, in_rl: bool) -> Policy | None:
    """The frozen policy of the KL term and of `memory.full_policy`, what RL started from: the policy without its
    adapter; or a copy, kept in `start/` so that a resumed run has it too.

    Raises:
        UserError: RL has begun and `start/` is gone.
    """
    asked = config.rl.memory_signal and config.memory.full_policy == "reference"
    if config.rl.loss.kl == "none" and not asked:
        return None
    if policy.adapter is not None:
        return policy.adapter.base
    start = run.path / "start"
    if not in_rl:
        _save_policy(policy, start)  # also over one that a start left which failed
    return load_policy(config.model, str(start), policy.tokenizer)


def _refuse_lost_start(config: Config, run: RunFolder) -> None:
    """Another policy in the place of the one that RL started from would change what the run learns, in silence.

    Raises:
        UserError: the run needs `start/`, and it is gone.
    """
    asked = config.rl.loss.kl != "none" or (config.rl.memory_signal and config.memory.full_policy == "reference")
    # After SFT, the adapters of RL lie on what SFT ended with.
    merged = config.model.lora is not None and config.sft.steps > 0 and not config.start
    start = run.path / "start"
    if ((asked and config.model.lora is None) or merged) and not start.is_dir():
        raise UserError(
            f"--resume: {start}, the policy that RL started from, is gone, and "
            f"{'the adapters of RL belong to it' if merged else 'rl.loss.kl and memory.full_policy compare with it'}; "
            "put it back from a copy, or begin another run with output=…"
        )


def _refuse_nothing_left(run: RunFolder, newest: Checkpoint | None, old: Mapping[str, Any], config: Config) -> None:
    """Raises UserError: the run is complete, or cannot be resumed as asked."""
    stage, done = (newest.stage, newest.step) if newest else (None, 0)
    refuse_shorter(config, stage, done)
    if stage == "rl":
        _refuse_lost_start(config, run)
    if not (run.path / "final").is_dir():
        return
    ended = "rl" if old["rl"]["steps"] else "sft"
    skipped = ended == "sft" and old.get("start")  # no SFT, so no checkpoint of it either
    if stage != ended and old[ended]["steps"] and not skipped:
        raise UserError(
            f"--resume: the run in {run.path} is complete, and its last checkpoint is gone; to train its policy "
            f"further, begin another run with model.path={run.path / 'final'} and output=…"
        )
    last = "rl" if config.rl.steps else "sft"
    skips = last == "sft" and config.start
    longer = not skips and getattr(config, last).steps > (done if stage == last else 0)
    if not longer and old["evaluate"]["questions"] == config.evaluate.questions:
        raise UserError(
            f"--resume: the run in {run.path} is complete, nothing is left to do; see mempo eval {run.path}, or make "
            f"it longer with --resume rl.steps={max(2 * config.rl.steps, 1)}"
        )


def _save_policy(policy: Policy, target: Path) -> None:
    with saving(target), atomic_folder(target) as folder:
        save_policy(policy, folder)


def _evaluated(
    name: str, setup: EvalSetup, config: Config, data: Data, run: RunFolder, console: Console, redo: bool = True
) -> ByObjectives:
    """Metrics by number of objectives; kept in `evaluation-NAME.json`, so that a resumed run has them too. Where they
    are not to be made again and are gone, nothing is known: the policy is another one by now."""
    file = run.path / f"evaluation-{name}.json"
    if not redo:
        remedy = "remove it to continue without these metrics"
        return {int(k): v for k, v in read_json(file, _EVALUATION, remedy).items()} if exists(file) else {}
    if not data.test:
        return {}
    rollouts = run.path / "rollouts" / f"evaluation-{name}.jsonl"
    found = metrics_by_objectives(evaluate(setup, data.test, config.evaluate, rollouts, console))
    write_atomic(file, json.dumps(found, indent=1) + "\n")
    return found


def _print_table(results: Sequence[tuple[str, ByObjectives]], config: Config, console: Console) -> None:
    settings = config.evaluate
    decoding = "greedy" if settings.temperature == 0 else f"temperature {settings.temperature:g}"
    if any(metrics for _, metrics in results):
        console.print(
            evaluation_table(results, f"k objectives, n test questions of each kind, {decoding}, seed {config.seed}")
        )
        for note in greedy_note(settings):
            say(console, note)
