"""`mempo doctor`: is everything here that a run of this configuration needs? One line a check, no weights loaded."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Literal

import torch
from packaging.requirements import Requirement

from mempo import __version__
from mempo.config import Config, Resolved
from mempo.engine.model import load_tokenizer, model_window, pick_device
from mempo.errors import UserError, counted
from mempo.run.evaluate import final_model
from mempo.run.own_objects import load_own_objects
from mempo.setup import check_window, load_data, make_agent, make_tools
from mempo.storage.model_files import check_weights, model_folder

GIB = 1 << 30
_LITTLE_DISK_GIB = 2
_COPIES = 8
"""Of the weights: two checkpoints with two moments each, the final policy, and what is being written."""


@dataclass(frozen=True)
class Check:
    """`fact`: what was found. `remedy`: what to do, where it is not `ok`."""

    name: str
    status: Literal["ok", "warn", "fail"]
    fact: str
    remedy: str = ""

    @property
    def line(self) -> str:
        remedy = f"; {self.remedy}" if self.remedy else ""
        return f"{self.status:<4}  {self.name}: {self.fact}{remedy}"


def checks(resolved: Resolved | None = None) -> Iterator[Check]:
    """The machine; with a configuration, also what it names: model, questions, index or server, output. It raises
    nothing: a refusal is a check that fails."""
    yield _system()
    yield from _libraries()
    yield _threads(resolved.config if resolved else None)
    yield _gpus()
    if resolved is None:
        yield _disk(Path.cwd(), 0)
        return
    config = resolved.config
    yield tried("own code", lambda: _own_code(config))
    yield tried("device", lambda: Check("device", "ok", str(pick_device(config.model.device))))
    model = None
    if config.model.path or config.start:
        model = config.model.path or _policy_of(config.start or "")
        yield tried("model", lambda: _model(config, str(model)))
    elif config.server is not None:
        yield Check("model", "ok", f"behind {config.server.url}; mempo eval asks it")
    else:
        yield Check("model", "ok", "a toy policy, made at the start")
    yield tried("data", lambda: _data(config, str(model) if model else None))
    yield _disk(Path(config.output), _weights_bytes(model) * _COPIES)


def tried(name: str, check: Callable[[], Check]) -> Check:
    try:
        return check()
    except (UserError, OSError, ValueError) as error:
        return Check(name, "fail", " ".join(str(error).split()))


def _system() -> Check:
    fact = f"mempo {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    if platform.system() == "Windows":
        remedy = "run one process per folder: Windows has no file locks of the kind that guards a folder here"
        return Check("system", "warn", fact, remedy)
    return Check("system", "ok", fact)


def _libraries() -> Iterator[Check]:
    """What mempo asks for, against what is installed."""
    found: dict[str, str] = {}
    problems = []
    for text in requires("mempo") or ():
        wanted = Requirement(text)
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
            continue
        try:
            installed = version(wanted.name)
        except PackageNotFoundError:
            problems.append(f"{wanted.name} is not installed")
            continue
        if not wanted.specifier.contains(installed, prereleases=True):
            problems.append(f"{wanted.name} is {installed}, and mempo needs {wanted.specifier}")
        found[wanted.name] = installed
    for problem in problems:
        yield Check("libraries", "fail", problem, "pip install mempo in an environment of its own")
    if not problems:
        fact = f"torch {found.get('torch')}, transformers {found.get('transformers')}; all {len(found)} fit"
        yield Check("libraries", "ok", fact)


def _threads(config: Config | None) -> Check:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = (config.model.threads if config else None) or torch.get_num_threads()
    fact = f"{counted(cores, 'core')}, {counted(threads, 'thread')} of torch"
    if threads > cores:
        return Check("threads", "warn", fact, f"set model.threads={cores}: more threads than cores wait for each other")
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load > cores:
        return Check("threads", "warn", f"{fact}, load {load:.1f}", "others use this machine; expect longer times")
    return Check("threads", "ok", fact)


def _gpus() -> Check:
    if not torch.cuda.is_available():
        why = "torch was built without CUDA" if torch.version.cuda is None else "torch sees no GPU or no driver"
        return Check("GPU", "ok", f"none ({why}); everything runs on the CPU")
    names = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return Check("GPU", "ok", ", ".join(f"{gpu.name} with {gpu.total_memory / GIB:.0f} GiB" for gpu in names))


def _own_code(config: Config) -> Check:
    load_own_objects(config)
    return Check("own code", "ok", "every import path can be loaded")


def _policy_of(start: str) -> str:
    return str(final_model(Path(start))) if (Path(start) / "config.yaml").is_file() else start


def _model(config: Config, path: str) -> Check:
    folder = model_folder(path)
    check_weights(folder)
    tokenizer, window = load_tokenizer(str(folder)), model_window(str(folder))
    check_window(config, window)
    size = _weights_bytes(path) / GIB
    return Check("model", "ok", f"{path}: {size:.2f} GiB, {tokenizer.size} tokens, window {window or 'not stated'}")


def _data(config: Config, model: str | None) -> Check:
    with tempfile.TemporaryDirectory() as work:
        data = load_data(config, Path(work))
        if model is not None:
            tokenizer = load_tokenizer(model)
            make_agent(config, tokenizer, make_tools(config, data.retriever), data.environment)
    searched = "nothing to search" if data.retriever is None else type(data.retriever).__name__
    counts = f"{len(data.train)} training questions, {len(data.test)} test questions, {searched}"
    said = "".join(f"; {remark}" for remark in data.remarks)
    return Check("data", "ok", counts + said)


def _disk(folder: Path, needed_bytes: int) -> Check:
    place = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not place.is_dir():
        return Check("disk", "fail", f"{place} is a file, and {folder} would lie in it", "set another output")
    if not os.access(place, os.W_OK):
        return Check("disk", "fail", f"{place} cannot be written", "set another output")
    free = shutil.disk_usage(place).free
    needed = max(needed_bytes, _LITTLE_DISK_GIB * GIB)
    fact = f"{free / GIB:.1f} GiB free in {place}"
    if free < needed:
        return Check("disk", "warn", fact, f"about {needed / GIB:.1f} GiB are needed for checkpoints and rollouts")
    return Check("disk", "ok", fact)


def _weights_bytes(model: str | Path | None) -> int:
    folder = Path(model) if model else None
    return sum(file.stat().st_size for file in folder.glob("*.safetensors")) if folder and folder.is_dir() else 0
