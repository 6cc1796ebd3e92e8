"""The folder of one run.

| file | what |
|---|---|
| config.yaml | the resolved configuration |
| data.json | what the questions and the corpus are, by hash |
| metrics.jsonl | a line a step: `stage`, `step`, and the measures |
| rollouts/step-N.jsonl | a line a rollout; beside it step-N.tokens with the token arrays |
| checkpoints/STAGE-N/ | whole or absent: model folder, optimizer.safetensors, state.json |
| evaluation-NAME.json | measures by number of objectives, of the start and the end |
| final/ | the policy at the end of the run |
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from mempo.config.yaml_text import dump_yaml
from mempo.errors import UserError
from mempo.storage.atomic import atomic_folder, lone_process, remove_atomic
from mempo.storage.files import append_line, dump_line, read_lines, write_atomic
from mempo.storage.former_names import metrics_today
from mempo.storage.read_files import PUT_BACK, DamagedFile, exists, read_json, read_yaml

Completed = Callable[[Mapping[str, Any]], Mapping[str, Any]]
_SHOWN, _SHOWN_CHARS = 12, 90
_CHECKPOINT = re.compile(r"(sft|rl)-(\d+)")
_OF_A_FAILED_START = (
    *("metrics.jsonl", "evaluation-start.json", "start", "probe-check.json", "start-check.json"),
    *("rollouts/evaluation-start.jsonl", "rollouts/evaluation-start.tokens"),
)
"""What a start can leave that ended before its first step."""
_OWN = ("data.json", "metrics.jsonl", "rollouts", "checkpoints", "start", "final", "probe-check.json")
_OWN += (
    "start-check.json",
    "evaluation-start.json",
    "evaluation-final.json",
    "verl.yaml",
    "data/train.parquet",
    "data/test.parquet",
    *("tracking.json", "tensorboard", "wandb", "mlflow"),
)
"""Names in the folder that are the run's."""


class _MetricsLine(TypedDict):
    stage: str
    step: int


_METRICS = TypeAdapter(_MetricsLine)
_FINGERPRINTS = TypeAdapter(dict[str, str])
PROMPTS = "the prompt around questions (chat template, tokenizer or date)"
"""The fingerprint that runs of earlier releases lack."""


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint: `step` steps of `stage` are in it."""

    stage: str
    step: int
    path: Path


class RunFolder:
    """Opens or makes a run folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.listeners: list[Callable[[str, int, Mapping[str, Any]], None]] = []
        """Hear each line that is logged: stage, step, metrics. They raise nothing."""

    # --- configuration ---------------------------------------------------------------------------------------------

    def check(
        self,
        config: Mapping[str, Any],
        resume: bool,
        completed: Completed | None = None,
        may_change: Sequence[str] = (),
    ) -> bool:
        """Whether this goes on with a run that has begun. Refuses to begin where that would mix two runs; nothing is
        written. A start that failed before its first step was saved or measured has not begun: it does not block the
        folder.

        Args:
            completed: adds to the configuration that was saved what it lacks because an earlier release wrote it.
            may_change: dotted keys that a resumed run may have other values of; `output` always may, since the folder
                may have been moved or copied.

        Raises:
            UserError: the folder holds a run and `resume` is off; or it is on and the configuration has changed (the
                keys are named), or there is nothing to resume; or the folder holds files that a run would write over.
        """
        file = self.path / "config.yaml"
        if not resume:
            if self.has_begun():
                raise UserError(
                    f"{self.path} already holds a run; add --resume to continue it, or choose another folder with "
                    "output=…"
                )
            self._refuse_foreign()
            return False
        if not exists(file):
            raise UserError(f"--resume: {self.path} holds no run (no config.yaml)")
        old = self.config()
        if not self.has_begun():
            self._refuse_foreign()
            return False
        free = ("output", *may_change)
        changed = changed_keys(without(completed(old) if completed else old, free), without(config, free))
        if changed:
            raise UserError(f"--resume with another configuration; changed: {shortened(changed)}")
        return True

    def config(self) -> dict[str, Any]:
        """The configuration as it was saved. Raises DamagedFile."""
        return read_yaml(self.path / "config.yaml", PUT_BACK)

    def has_begun(self) -> bool:
        """Whether a step of the run is in the folder, measured or saved."""
        checkpoints = self.path / "checkpoints"
        there = checkpoints.is_dir() and any(not path.name.startswith(".") for path in checkpoints.iterdir())
        metrics = self.path / "metrics.jsonl"
        # verl, once it has been started, keeps its measures elsewhere.
        there = there or (self.path / "final").exists() or (self.path / "verl.yaml").exists()
        return exists(self.path / "config.yaml") and (there or (exists(metrics) and not _is_empty(metrics)))

    def _refuse_foreign(self) -> None:
        """Files that a run would write over, in a folder in which none was ever started."""
        if (self.path / "data.json").is_file() and ((self.path / "config.yaml").is_file() or self._marks_are_ours()):
            return  # what a start left that failed
        there = [name for name in ("config.yaml", *_OWN) if exists(self.path / name)]
        corpus = self.path / "data" / "corpus"
        if exists(corpus / "corpus.jsonl") and not exists(corpus / "corpus.json"):
            there.append("data/corpus/corpus.jsonl")
        if there:
            raise UserError(
                f"{self.path} holds {', '.join(there)}, which a run would write over; choose another folder with "
                "output=…, or move them away"
            )

    def _marks_are_ours(self) -> bool:
        """Whether `data.json`, the first file of a run, was written by one: a start that was killed may have left it
        alone."""
        try:
            return PROMPTS in read_json(self.path / "data.json", _FINGERPRINTS, "")
        except DamagedFile:
            return False

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One process at a time in a run folder; the lock goes with the process, and a folder left empty goes too.

        Raises:
            UserError: another process has it, or the folder cannot be written.
        """
        with lone_process(
            self.path,
            lambda error: f"output {str(self.path)!r} cannot be written ({error}); set another output=…",
            f"another process is at work in {self.path}; wait for it, or set another output=…",
        ) as lock:
            try:
                yield
            finally:
                if os.listdir(self.path) == [lock.name]:
                    lock.unlink()
                    self.path.rmdir()

    def begin(
        self,
        config: Mapping[str, Any],
        resume: bool,
        completed: Completed | None = None,
        may_change: Sequence[str] = (),
    ) -> None:
        """Make the folder and write the configuration, or go on in it, with what `may_change`. Raises as `check`
        does."""
        goes_on = self.check(config, resume, completed, may_change)
        if not goes_on:
            for left in _OF_A_FAILED_START:
                path = self.path / left
                if path.is_dir():
                    remove_atomic(path)
                else:
                    path.unlink(missing_ok=True)
        old = self.config() if goes_on else {}
        before = without(completed(old) if completed else old, ("output",))
        if not goes_on or changed_keys(before, without(config, ("output",))):
            write_atomic(self.path / "config.yaml", dump_yaml(config))

    def refuse_other_data(self, fingerprints: Mapping[str, str], resume: bool, may_change: Sequence[str] = ()) -> None:
        """Remember what the run's questions, corpus and prompts are; a resumed run must have the same, but for those
        named in `may_change`, and its prompts where the release that began it did not tell.

        Raises:
            UserError: something has changed since the run began; it is named.
        """
        file = self.path / "data.json"
        if resume and exists(file):
            old = read_json(file, _FINGERPRINTS, "remove it, and the data are taken to be those of the run")
            fingerprints = {name: mark for name, mark in fingerprints.items() if name != PROMPTS or name in old}
            changed = [name for name, mark in fingerprints.items() if name not in may_change and old.get(name) != mark]
            if changed:
                raise UserError(
                    f"--resume: {' and '.join(changed)} changed since the run in {self.path} began; put the old ones "
                    "back, or begin another run with output=…"
                )
        if not resume or may_change or not exists(file):
            write_atomic(file, json.dumps(dict(fingerprints), indent=1) + "\n")

    # --- measures --------------------------------------------------------------------------------------------------

    def log(self, stage: str, step: int, metrics: Mapping[str, Any]) -> None:
        append_line(self.path / "metrics.jsonl", {"stage": stage, "step": step, **metrics})
        for listener in self.listeners:
            listener(stage, step, metrics)

    def metrics(self) -> list[dict[str, Any]]:
        remedy = "take that line out, or move the file away to continue without the measures so far"
        return [metrics_today(line) for line in read_lines(self.path / "metrics.jsonl", _METRICS, remedy)]

    def forget_after(self, stage: str, step: int, stages: tuple[str, ...]) -> None:
        """Drop measures of steps that a resumed run will do again: later steps of `stage`, and all later stages."""
        later = stages[stages.index(stage) + 1 :]
        kept = [
            line
            for line in self.metrics()
            if line["stage"] not in later and not (line["stage"] == stage and line["step"] > step)
        ]
        write_atomic(self.path / "metrics.jsonl", "".join(map(dump_line, kept)))

    def rollouts(self, step: int) -> Path:
        """Path of the rollout file of an RL step; the token arrays lie beside it."""
        return self.path / "rollouts" / f"step-{step}.jsonl"

    # --- checkpoints -----------------------------------------------------------------------------------------------

    def save_checkpoint(
        self, stage: str, step: int, write: Callable[[Path], None], keep: int = 2, keep_every: int | None = None
    ) -> Path:
        """`write` fills the folder; it gets its name when whole. The newest `keep` of a stage stay, and those whose
        step is a multiple of `keep_every`."""
        final = self.path / "checkpoints" / f"{stage}-{step}"
        with atomic_folder(final) as folder:
            write(folder)
        for old in [c for c in self.checkpoints() if c.stage == stage][:-keep]:
            if not keep_every or old.step % keep_every:
                remove_atomic(old.path)
        return final

    def checkpoints(self) -> list[Checkpoint]:
        """Whole checkpoints, in the order they were made: by stage, then by step."""
        found = []
        for path in (self.path / "checkpoints").glob("*"):
            match = _CHECKPOINT.fullmatch(path.name)
            if match and path.is_dir():
                found.append(Checkpoint(match.group(1), int(match.group(2)), path))
        return sorted(found, key=lambda c: (("sft", "rl").index(c.stage), c.step))


def shortened(changed: Sequence[str]) -> str:
    """A list of changes that fits on a screen."""
    shown = [line if len(line) <= _SHOWN_CHARS else f"{line[:_SHOWN_CHARS]}…" for line in changed[:_SHOWN]]
    more = len(changed) - _SHOWN
    return "; ".join(shown) + (f"; and {more} more" if more > 0 else "")


def without(data: Any, keys: Sequence[str]) -> Any:
    """Nested settings without some dotted keys."""
    if not isinstance(data, Mapping):
        return data
    kept = {}
    for key, value in data.items():
        if key in keys:
            continue
        below = [name.removeprefix(f"{key}.") for name in keys if name.startswith(f"{key}.")]
        kept[key] = without(value, below) if below else value
    return kept


def _is_empty(file: Path) -> bool:
    return file.is_file() and file.stat().st_size == 0


def changed_keys(old: Any, new: Any, prefix: str = "") -> list[str]:
    """`key: old → new` for every leaf that differs."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        keys = [*old, *(key for key in new if key not in old)]
        missing = object()
        return [
            line
            for key in keys
            for line in changed_keys(old.get(key, missing), new.get(key, missing), f"{prefix}{key}.")
            if not (old.get(key, missing) is missing and new.get(key, missing) is missing)
        ]
    same = list(old) == list(new) if isinstance(old, list | tuple) and isinstance(new, list | tuple) else old == new
    if same:
        return []
    shown = ["(absent)" if type(value) is object else repr(value) for value in (old, new)]
    return [f"{prefix.rstrip('.')}: {shown[0]} → {shown[1]}"]
