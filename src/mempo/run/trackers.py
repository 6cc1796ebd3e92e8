"""Trackers: each line of metrics.jsonl sent on to where somebody compares runs. Local unless their own environment
variables say otherwise, and never in the way of training.

A tracker works in a thread of its own. Training hands a line over and goes on; a tracker that fails or hangs is given
up with one warning. The metrics of RL keep their names, those of another stage begin with it, as `sft/loss`.
"""

from __future__ import annotations

import json
import logging
import math
import os
import queue
import re
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from pydantic import TypeAdapter

from mempo.config import Config
from mempo.config.addresses import masked
from mempo.config.base import leaves
from mempo.config.yaml_text import dump_yaml
from mempo.errors import ConfigError
from mempo.http.secrets import HIDDEN, Redactor
from mempo.storage.files import write_atomic
from mempo.storage.read_files import exists, read_json
from mempo.storage.run_folder import RunFolder

CLOSING_S = 60.0
"""How long the end of a run waits for its trackers."""
_MOST_WAITING = 10_000
_IMPORTING = threading.Lock()
"""Libraries that share others are not imported by several threads at once."""
_FILE = "tracking.json"
_ID = TypeAdapter(dict[str, str])
_SECRET_WORDS = frozenset(
    {"key", "apikey", "token", "secret", "password", "passwd", "pwd", "credential", "credentials"}
)
_SHORTEST_SECRET_CHARS = 8


class Tracker(Protocol):
    """Where metrics go. `log` gets them under the names that they are shown by."""

    def log(self, stage: str, step: int, metrics: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """`RUN/tensorboard`, a folder a stage."""

    def __init__(self, folder: Path, name: str, mark: str, config: Mapping[str, Any]) -> None:
        with _IMPORTING:
            from torch.utils.tensorboard import SummaryWriter

        self._folder, self._make, self._writers = folder / "tensorboard", SummaryWriter, {}
        if not self._folder.exists():
            with SummaryWriter(str(self._folder)) as writer:
                writer.add_text("config", f"```yaml\n{dump_yaml(config)}```")

    def log(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        if stage not in self._writers:  # steps that a resumed run does again are taken out
            self._writers[stage] = self._make(str(self._folder / stage), purge_step=step)
        for name, value in metrics.items():
            self._writers[stage].add_scalar(name, value, step)
        self._writers[stage].flush()

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()


class Wandb:
    """`RUN/wandb`, offline unless WANDB_MODE says otherwise. It gets metrics and configuration, nothing else."""

    def __init__(self, folder: Path, name: str, mark: str, config: Mapping[str, Any]) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        with _IMPORTING:
            import wandb  # pyright: ignore[reportMissingImports] - an extra

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "mempo"),
            name=name,
            id=mark,
            resume="allow",
            dir=str(folder),
            config=dict(config),
            mode=os.environ.get("WANDB_MODE", "offline"),
            settings=wandb.Settings(
                silent=True, console="off", save_code=False, disable_git=True, x_disable_meta=True, x_disable_stats=True
            ),
        )
        self._run.define_metric("*", step_metric="step")
        for stage in ("sft", "validation"):
            self._run.define_metric(f"{stage}/*", step_metric=f"{stage}/step")

    def log(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log({named("step", stage): step, **metrics})

    def close(self) -> None:
        self._run.finish()


class Trackio:
    """trackio's own database on this machine, or what TRACKIO_SPACE_ID or TRACKIO_SERVER_URL names."""

    def __init__(self, folder: Path, name: str, mark: str, config: Mapping[str, Any]) -> None:
        with _IMPORTING:
            import trackio  # pyright: ignore[reportMissingImports] - an extra

        for module in (trackio, trackio.utils, trackio.run):  # they print, and have no setting for it
            setattr(module, "print", lambda *args, **keywords: None)  # noqa: B010
        self._run = trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", "mempo"),
            name=f"{name}-{mark}",
            config=dict(config),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def log(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()


class Mlflow:
    """`RUN/mlflow/mlflow.db`, or the store or server that MLFLOW_TRACKING_URI names."""

    def __init__(self, folder: Path, name: str, mark: str, config: Mapping[str, Any]) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        with _IMPORTING:
            import mlflow  # pyright: ignore[reportMissingImports] - an extra
            from mlflow.entities import Metric, Param  # pyright: ignore[reportMissingImports]

        for talkative in ("mlflow", "alembic"):
            logging.getLogger(talkative).setLevel(logging.WARNING)
        self._metric = Metric
        store = os.environ.get("MLFLOW_TRACKING_URI")
        if store is None:
            own = (folder / "mlflow").absolute()
            own.mkdir(exist_ok=True)
            store = f"sqlite:///{own / 'mlflow.db'}"
        self._client = mlflow.MlflowClient(store)
        project = os.environ.get("MLFLOW_EXPERIMENT_NAME", "mempo")
        there = self._client.get_experiment_by_name(project)
        experiment = there.experiment_id if there else self._client.create_experiment(project)
        found = self._client.search_runs([experiment], f"tags.mempo = '{mark}'")
        run = found[0] if found else self._client.create_run(experiment, run_name=name, tags={"mempo": mark})
        self._id = run.info.run_id
        if found:
            self._client.update_run(self._id, status="RUNNING")
            return
        params = [Param(key, str(value)[:500]) for key, value in leaves(config)]
        for first in range(0, len(params), 100):  # as many as a call takes
            self._client.log_batch(self._id, params=params[first : first + 100])

    def log(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        self._client.log_batch(self._id, [self._metric(name, value, now, step) for name, value in metrics.items()])

    def close(self) -> None:
        self._client.set_terminated(self._id)


TRACKERS: dict[str, Callable[[Path, str, str, Mapping[str, Any]], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": Wandb,
    "trackio": Trackio,
    "mlflow": Mlflow,
}


def check_trackers(config: Config) -> None:
    """Raises ConfigError: a tracker is asked for that is not installed."""
    for name in config.track:
        spec = find_spec(name)
        if spec is None or spec.origin is None:  # a folder of that name is none
            raise ConfigError(
                f"track names {name}, which is not installed; pip install 'mempo[{name}]', or take it out of track"
            )


@contextmanager
def tracked(run: RunFolder, trackers: Sequence[str]) -> Iterator[None]:
    """While it is entered, what the run logs goes to these trackers too; they are opened with its first line, and get
    the configuration that is in the folder. Nothing that a tracker does is raised."""
    feeds: list[_Feed] = []

    def tell(stage: str, step: int, metrics: Mapping[str, Any]) -> None:
        try:
            if not feeds:
                feeds.extend(_feeds(run, trackers))
            for feed in feeds:
                feed.put(stage, step, metrics)
        except Exception as error:
            run.listeners.remove(tell)
            _warn("trackers are given up", error)

    if trackers:
        run.listeners.append(tell)
    try:
        yield
    finally:
        until = time.monotonic() + CLOSING_S
        for feed in feeds:
            feed.end()
        for feed in feeds:
            feed.wait(until - time.monotonic())
        if tell in run.listeners:
            run.listeners.remove(tell)


def _feeds(run: RunFolder, trackers: Sequence[str]) -> list[_Feed]:
    name, mark, settings = run.path.absolute().name, _mark_of(run), redacted(run.config())
    return [_Feed(tracker, lambda make=TRACKERS[tracker]: make(run.path, name, mark, settings)) for tracker in trackers]


def _mark_of(run: RunFolder) -> str:
    """What tells the run from all others, in its folder; a resumed run has it already."""
    file = run.path / _FILE
    if exists(file):
        return read_json(file, _ID, "remove it, and trackers begin a new run")["id"]
    mark = secrets.token_hex(4)
    write_atomic(file, json.dumps({"id": mark}) + "\n")
    return mark


class _Feed:
    """One tracker and its thread, which opens it, hands it what was put, and closes it."""

    def __init__(self, name: str, make: Callable[[], Tracker]) -> None:
        self._name, self._make = name, make
        self._lines: queue.Queue[tuple[str, int, dict[str, float]] | None] = queue.Queue(_MOST_WAITING)
        self._given_up = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def put(self, stage: str, step: int, metrics: Mapping[str, Any]) -> None:
        if not self._given_up.is_set():
            try:
                self._lines.put_nowait((stage, step, shown(stage, metrics)))
            except queue.Full:
                self._give_up(f"{_MOST_WAITING} steps wait for it")

    def end(self) -> None:
        with suppress(queue.Full):
            self._lines.put_nowait(None)

    def wait(self, seconds: float) -> None:
        self._thread.join(max(seconds, 0))
        if self._thread.is_alive():
            self._give_up(f"it was not done {CLOSING_S:g} s after the run")

    def _run(self) -> None:
        try:
            tracker = self._make()
            while (line := self._lines.get()) is not None:
                if self._given_up.is_set():
                    return
                tracker.log(*line)
            tracker.close()
        except BaseException as error:  # also a library that would end the process
            self._give_up(error)

    def _give_up(self, reason: object) -> None:
        if not self._given_up.is_set():
            self._given_up.set()
            _warn(f"{self._name} is given up", reason)


def _warn(what: str, reason: object) -> None:
    told = f"{type(reason).__name__}: {reason}" if isinstance(reason, BaseException) else str(reason)
    line = " ".join(_without_secrets(told).split())[:300]
    print(f"mempo: warning: {what} ({line}); the run goes on, and metrics.jsonl has everything", file=sys.stderr)


def shown(stage: str, metrics: Mapping[str, Any]) -> dict[str, float]:
    """The numbers among the metrics, under the names of `named`."""
    return {
        named(name, stage): float(value)
        for name, value in metrics.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }


def named(metric: str, stage: str) -> str:
    """`loss` of SFT is `sft/loss`: stages count steps of their own, and share names such as `update/grad_norm`."""
    return metric if stage == "rl" else f"{stage}/{metric}"


# --- secrets ---------------------------------------------------------------------------------------------------------


def redacted(plain: Any, key: str = "") -> Any:
    """The configuration as trackers see it: without texts under a key that is named like a secret, passwords in
    addresses, and what stands in an environment variable that is named like a secret."""
    if isinstance(plain, Mapping):
        return {name: redacted(value, str(name)) for name, value in plain.items()}
    if isinstance(plain, list | tuple):
        return [redacted(value, key) for value in plain]
    if not isinstance(plain, str):
        return plain
    return HIDDEN if _words(key)[-1] in _SECRET_WORDS else _without_secrets(plain)


def _without_secrets(text: str) -> str:
    body = masked(text).encode("utf-8", "surrogatepass")
    for name, value in os.environ.items():
        if not _SECRET_WORDS.isdisjoint(_words(name)) and len(value) >= _SHORTEST_SECRET_CHARS:
            body = _redactor(value).message(body)
    return body.decode("utf-8", "surrogatepass")


@cache
def _redactor(secret: str) -> Redactor:
    return Redactor(secret)


def _words(name: str) -> list[str]:
    return re.split(r"[^a-z]+", name.lower())
