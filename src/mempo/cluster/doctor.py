"""`mempo cluster doctor`: is everything here that a run of this configuration needs? One line a check."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from mempo.cluster.constraints import check_divides, check_enough_questions
from mempo.cluster.machine import Machine
from mempo.cluster.plan_memory import GB, memory_of, refuse_too_large
from mempo.cluster.plan_settings import keys_of_config, plan_settings, settings_of_config
from mempo.cluster.plan_tokens import step_tokens
from mempo.cluster.verl_config import TRAINER, check_for_cluster, verl_config
from mempo.cluster.versions import VERL
from mempo.config import Config, Resolved
from mempo.config.cluster import ClusterSettings
from mempo.engine.lora import is_adapter_folder
from mempo.engine.model import check_model_folder, load_tokenizer
from mempo.errors import UserError
from mempo.run.doctor import Check, tried
from mempo.setup import load_data, make_agent

GIB = 1 << 30
PLUGIN = "mempo.cluster.plugin"
ENGINES = {"vllm": "0.24.0", "sglang": "0.5.12"}
"""The versions that verl 0.9.1 names in its extras."""
FLASH_ATTENTION = "flash-attn==2.8.3"


def quick_checks(resolved: Resolved, machine: Machine, address: str | None) -> Iterator[Check]:
    """What takes no time: before a launch. It raises nothing: a refusal is a check that fails."""
    config = resolved.config
    yield tried("configuration", lambda: _composes(resolved))
    yield from _versions(config, machine)
    if address is None:
        yield from _gpus(config, machine)
    else:
        yield from _ray(config, address, machine)
    yield tried("model", lambda: _model(config, machine))
    if config.data.server:
        yield tried("retrieval", lambda: _retrieval(config, machine))
    yield _output(config, machine)


def all_checks(resolved: Resolved, machine: Machine, address: str | None) -> Iterator[Check]:
    """The same, and what takes seconds or minutes."""
    config = resolved.config
    yield from quick_checks(resolved, machine, address)
    yield from _plugin(machine)
    yield tried("agent", lambda: _agent(config))
    yield tried("data", lambda: _data(config))


# --- checks --------------------------------------------------------------------------------------------------------


def _composes(resolved: Resolved) -> Check:
    config = resolved.config
    verl_config(config, resolved.plain(), Path(config.output))
    settings = config.cluster or ClusterSettings()
    unknown = sorted(settings.verl)
    own = f", {len(unknown)} of verl's own keys" if unknown else ""
    return Check("configuration", "ok", f"{settings.nodes} x {settings.gpus_per_node} GPUs, {settings.engine}{own}")


def _versions(config: Config, machine: Machine) -> Iterator[Check]:
    problems = machine.version_problems()
    for problem in problems:
        fact, _, remedy = problem.partition("; ")
        yield Check("versions", "fail", fact, remedy)
    if not problems:
        yield Check("versions", "ok", f"verl {machine.installed('verl')}")
    yield _engine((config.cluster or ClusterSettings()).engine, machine)
    if config.model.attention == "flash_attention_2" and not any(map(machine.installed, ("flash-attn", "kernels"))):
        remedy = f"pip install {FLASH_ATTENTION} --no-build-isolation, or set model.attention=sdpa"
        yield Check("attention", "fail", "flash_attention_2 is asked for, and flash-attn is not installed", remedy)
    if PLUGIN not in machine.plugins():
        remedy = "install mempo in this environment, and in that of every node: pip install 'mempo[cluster]'"
        yield Check("plug-in", "fail", "no installed package tells verl of it (entry point verl.plugins)", remedy)


def _engine(engine: str, machine: Machine) -> Check:
    found, wanted = machine.installed(engine), ENGINES[engine]
    if found is None:
        remedy = f"pip install {engine}=={wanted} (docs/cluster.md), or set another cluster.engine"
        return Check("engine", "fail", f"{engine} is not installed", remedy)
    if found != wanted:
        # verl says itself which ones it cannot run with; others are untried.
        return Check("engine", "warn", f"{engine} is {found}, verl {VERL} names {wanted}", f"try it, or take {wanted}")
    return Check("engine", "ok", f"{engine} {found}")


def _plugin(machine: Machine) -> Iterator[Check]:
    said = machine.trainer()
    if said == "mempo.cluster.trainer":
        yield Check("plug-in", "ok", f"verl knows the trainer {TRAINER!r}")
    else:
        yield Check("plug-in", "fail", f"verl does not know the trainer {TRAINER!r} ({said})", "see the lines above")


def _gpus(config: Config, machine: Machine) -> Iterator[Check]:
    settings, found = config.cluster or ClusterSettings(), machine.gpu_bytes()
    wanted = settings.gpus_per_node
    if settings.nodes > 1:
        fact = f"cluster.nodes is {settings.nodes}, and without --address Ray is started on this one alone"
        yield Check(
            "Ray", "fail", fact, "start Ray on all of them (docs/cluster.md, Several nodes), and give --address"
        )
    if len(found) < wanted:
        remedy = f"set cluster.gpus_per_node={len(found)}" if found else "start on a GPU node, or give --address"
        yield Check("GPUs", "fail", f"{len(found)} of {wanted} are visible to torch", remedy)
        return
    smallest = min(found)
    yield Check("GPUs", "ok", f"{len(found)}, the smallest with {smallest / GIB:.0f} GiB")
    yield tried("memory", lambda: _memory(config, machine, smallest))


def _memory(config: Config, machine: Machine, gpu_bytes: int) -> Check:
    """By the sums of `mempo cluster plan`, which refuse with a value that works."""
    given = settings_of_config(config) | {"model": config.model.path or "", "gpu_memory_gb": round(gpu_bytes / GB, 1)}
    try:
        shape, settings = machine.decoder(config.model.path or ""), plan_settings(given)
    except UserError as error:
        return Check("memory", "warn", f"nothing is known of it: {error}", "look at the first step")
    tokens = step_tokens(settings)
    try:
        refuse_too_large(settings, shape, tokens)
    except UserError as error:
        raise UserError(keys_of_config(str(error))) from None
    memory = memory_of(settings, shape, tokens)
    fact = f"{memory.rollout.total / GB:.1f} GB in rollouts, {memory.update.total / GB:.1f} in the update, by the plan"
    return Check("memory", "ok", fact)


def _ray(config: Config, address: str, machine: Machine) -> Iterator[Check]:
    """The machines behind an address: how many, their GPUs, memory and versions."""
    if address != "auto":
        parts = urlsplit(address if "//" in address else f"//{address}")
        host, port = parts.hostname or "", parts.port or (10001 if parts.scheme == "ray" else 6379)
        if not machine.reaches(host, port):
            yield Check("Ray", "fail", f"{host}:{port} does not answer", "start it: ray start --head on that node")
            return
    try:
        nodes = machine.nodes(address)
    except (UserError, OSError, ValueError, subprocess.SubprocessError) as error:
        yield Check("Ray", "fail", " ".join(str(error).split()))
        return
    settings = config.cluster or ClusterSettings()
    wanted, each = settings.nodes, settings.gpus_per_node
    fitting = [node for node in nodes if node.gpus >= each]
    held = ", ".join(f"{node.address} with {node.gpus}" for node in nodes) or "none"
    fact = f"{len(fitting)} nodes with {each} GPUs or more ({held})"
    if len(fitting) < wanted:
        yield Check(
            "Ray", "fail", f"{fact}, of {wanted}", "ray start --address HOST:6379 on the others, or set cluster.nodes"
        )
        return
    yield Check("Ray", "ok", fact)
    for node in fitting:
        for problem in node.problems:
            yield Check("versions", "fail", f"on {node.address}: {problem}")
    sizes = [size for node in fitting for size in node.gpu_bytes]
    if sizes:
        yield tried("memory", lambda: _memory(config, machine, min(sizes)))


def _model(config: Config, machine: Machine) -> Check:
    check_for_cluster(config)
    path = config.model.path or ""
    check_model_folder(path)
    if is_adapter_folder(path):
        raise UserError(f"{path} is an adapter, not a model; merge it first (the final/ of a run is merged)")
    shape = machine.shape(path)
    check_divides(config, shape)
    return Check("model", "ok", f"{path}, window {shape.window_tokens or 'unknown'}")


def _retrieval(config: Config, machine: Machine) -> Check:
    server, nodes = config.data.server or "", (config.cluster or ClusterSettings()).nodes
    machine.healthy(config)
    if nodes > 1 and urlsplit(server).hostname in ("localhost", "127.0.0.1", "::1"):
        remedy = "give the address that all nodes reach, or run one on each"
        return Check("retrieval", "warn", f"{server} answers here, and means another machine on each node", remedy)
    return Check("retrieval", "ok", f"{server} answers")


def _output(config: Config, machine: Machine) -> Check:
    folder = Path(config.output).absolute()
    if not machine.writable(folder):
        return Check("output", "fail", f"{folder} cannot be written", "set another output")
    nodes = (config.cluster or ClusterSettings()).nodes
    return Check("output", "ok", f"{folder}" + (", which must be the same folder on all nodes" if nodes > 1 else ""))


def _agent(config: Config) -> Check:
    tokenizer = load_tokenizer(config.model.path or "")
    agent = make_agent(config, tokenizer, {})
    how = "its chat template" if agent.renderer.chat else "no chat template"
    if agent.renderer.difference:
        return Check("agent", "warn", agent.renderer.difference)
    return Check("agent", "ok", f"tokenizer of {tokenizer.size} tokens, {how}")


def _data(config: Config) -> Check:
    sources = {name: getattr(config.data, name) for name in ("index", "corpus")}
    missing = [
        f"data.{name} {path} does not exist" for name, path in sources.items() if path and not Path(path).exists()
    ]
    if missing:
        raise UserError(missing[0])
    # Questions alone: what is searched was asked already, or takes long to open.
    questions = config.data.model_copy(update={"server": None, "index": None, "corpus": None})
    with tempfile.TemporaryDirectory() as folder:
        data = load_data(config.model_copy(update={"data": questions}), Path(folder))
    check_enough_questions(config, len(data.train))
    fact = f"{len(data.train)} training questions, {len(data.test)} test questions"
    if data.remarks:
        return Check("data", "warn", f"{fact}; {'; '.join(data.remarks)}")
    return Check("data", "ok", fact)


def failures(checks: Sequence[Check]) -> list[Check]:
    return [check for check in checks if check.status == "fail"]
