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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from mempo.errors import UserError
from mempo.runs.files import append_line, dump_line, read_lines, write_whole
from mempo.whole import lone_process, remove_whole, whole_folder

Completed = Callable[[Mapping[str, Any]], Mapping[str, Any]]
_CHECKPOINT = re.compile(r"(sft|rl)-(\d+)")


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

    # --- configuration ---------------------------------------------------------------------------------------------

    def check(self, config: Mapping[str, Any], resume: bool, completed: Completed | None = None) -> None:
        """Refuse to begin where that would mix two runs; nothing is written. `completed` adds to the configuration that
        was saved what it lacks because an earlier release wrote it.

        Raises:
            UserError: the folder holds a run and `resume` is off; or it is on and the configuration has changed (the
                keys are named), or there is nothing to resume.
        """
        file = self.path / "config.yaml"
        if not resume:
            if file.exists():
                raise UserError(
                    f"{self.path} already holds a run; add --resume to go on with it, or choose another folder with "
                    "output=…"
                )
            return
        if not file.exists():
            raise UserError(f"--resume: {self.path} holds no run (no config.yaml)")
        try:
            old = yaml.safe_load(file.read_text("utf-8"))
        except (yaml.YAMLError, ValueError) as error:
            raise UserError(f"--resume: {file} is damaged ({' '.join(str(error).split())})") from error
        if not isinstance(old, Mapping) or not old:
            raise UserError(f"--resume: {file} is damaged: it holds no settings")
        changed = changed_keys(completed(old) if completed else old, config)
        if changed:
            raise UserError("--resume with another configuration; changed: " + "; ".join(changed))

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

    def begin(self, config: Mapping[str, Any], resume: bool, completed: Completed | None = None) -> None:
        """Make the folder and write the configuration, or go on in it. Raises as `check` does."""
        self.check(config, resume, completed)
        if not resume:
            text = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
            write_whole(self.path / "config.yaml", text)

    def refuse_other_data(self, fingerprints: Mapping[str, str], resume: bool) -> None:
        """Remember what the run's questions, corpus and prompts are; a resumed run must have the same, as far as the
        release that began it told.

        Raises:
            UserError: something has changed since the run began; it is named.
        """
        file = self.path / "data.json"
        if resume and file.exists():
            old = json.loads(file.read_text("utf-8"))
            changed = [name for name, mark in fingerprints.items() if old.get(name, mark) != mark]
            if changed:
                raise UserError(
                    f"--resume: {' and '.join(changed)} changed since the run in {self.path} began; put the old ones "
                    "back, or begin another run with output=…"
                )
        else:
            write_whole(file, json.dumps(dict(fingerprints), indent=1) + "\n")

    # --- measures --------------------------------------------------------------------------------------------------

    def log(self, stage: str, step: int, metrics: Mapping[str, Any]) -> None:
        append_line(self.path / "metrics.jsonl", {"stage": stage, "step": step, **metrics})

    def metrics(self) -> list[dict[str, Any]]:
        return read_lines(self.path / "metrics.jsonl")

    def forget_after(self, stage: str, step: int, stages: tuple[str, ...]) -> None:
        """Drop measures of steps that a resumed run will do again: later steps of `stage`, and all later stages."""
        later = stages[stages.index(stage) + 1 :]
        kept = [
            line
            for line in self.metrics()
            if line["stage"] not in later and not (line["stage"] == stage and line["step"] > step)
        ]
        write_whole(self.path / "metrics.jsonl", "".join(map(dump_line, kept)))

    def rollouts(self, step: int) -> Path:
        """Path of the rollout file of an RL step; the token arrays lie beside it."""
        return self.path / "rollouts" / f"step-{step}.jsonl"

    # --- checkpoints -----------------------------------------------------------------------------------------------

    def save_checkpoint(self, stage: str, step: int, write: Callable[[Path], None], keep: int = 2) -> Path:
        """`write` fills the folder; it gets its name when whole. The newest `keep` of a stage stay."""
        final = self.path / "checkpoints" / f"{stage}-{step}"
        with whole_folder(final) as folder:
            write(folder)
        for old in [c for c in self.checkpoints() if c.stage == stage][:-keep]:
            remove_whole(old.path)
        return final

    def checkpoints(self) -> list[Checkpoint]:
        """Whole checkpoints, in the order they were made: by stage, then by step."""
        found = []
        for path in (self.path / "checkpoints").glob("*"):
            match = _CHECKPOINT.fullmatch(path.name)
            if match and path.is_dir():
                found.append(Checkpoint(match.group(1), int(match.group(2)), path))
        return sorted(found, key=lambda c: (("sft", "rl").index(c.stage), c.step))


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
