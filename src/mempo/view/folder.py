"""What is in a folder that somebody wants to look at: a training run, one of a cluster, or an evaluation."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

from mempo.config.yaml_text import dump_yaml
from mempo.errors import UserError
from mempo.evaluate.folder import EvalFolder
from mempo.evaluate.report import COLUMNS, cells
from mempo.rollout.tokenizer import Tokenizer
from mempo.storage.model_files import model_folder
from mempo.storage.read_files import PUT_BACK, RECORD, exists, read_json, read_yaml
from mempo.storage.rollouts import tokens_path
from mempo.storage.run_folder import RunFolder
from mempo.view.rollouts import RolloutFile
from mempo.view.text import visible

_STEP = re.compile(r"step-(\d+)")
_NAME = re.compile(r"[\w.-]+", re.ASCII)
TABLE_HEAD = ("objectives", "n", "policy", *(text for _, text, _ in COLUMNS))


class ViewedFolder:
    """A folder as pages show it. `tokenizer`: a folder or name to decode with in place of the run's own.

    Raises:
        UserError: the folder holds neither a run nor an evaluation.
    """

    def __init__(self, path: Path, label: str | None = None, tokenizer: str | None = None) -> None:
        if not exists(path / "config.yaml"):
            raise UserError(f"{path} holds no run and no evaluation (no config.yaml); give the folder of one")
        self.path, self.label = path, visible(label or path.resolve().name)
        self.is_evaluation = exists(path / "identity.json")
        self._named = tokenizer
        self._lock = Lock()
        self._tokenizer: Tokenizer | None = None
        self._files: dict[str, RolloutFile] = {}
        self._metrics: tuple[tuple[int, int], list[dict[str, Any]]] = ((-1, -1), [])

    @cached_property
    def config(self) -> dict[str, Any]:
        """The configuration as it was saved. Raises DamagedFile."""
        return read_yaml(self.path / "config.yaml", PUT_BACK)

    @property
    def config_text(self) -> str:
        return dump_yaml(self.config)

    def setting(self, key: str) -> Any:
        """The saved value of a dotted key; None where there is none."""
        value: Any = self.config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    def metrics(self) -> list[dict[str, Any]]:
        """The metrics so far, read again when there are more. Raises DamagedFile."""
        stamp = self._stamp()
        if stamp != self._metrics[0]:
            self._metrics = (stamp, RunFolder(self.path).metrics())
        return self._metrics[1]

    def _stamp(self) -> tuple[int, int]:
        file = self.path / "metrics.jsonl"
        return (file.stat().st_size, file.stat().st_mtime_ns) if file.is_file() else (0, 0)

    def version(self) -> str:
        """Changes when there is something new to show."""
        return f"{self._stamp()[0]}.{self._stamp()[1]}.{len(self.files())}"

    def files(self) -> dict[str, RolloutFile]:
        """Rollout files by name: the evaluation of the start, the steps, the evaluation of the end, others."""
        found = {}
        agents = list(self._agents())
        for path in sorted((self.path / "rollouts").glob("*.jsonl"), key=lambda path: _file_order(path, agents)):
            if _NAME.fullmatch(path.stem) and tokens_path(path).is_file():
                found[path.stem] = self._files.setdefault(path.stem, RolloutFile(path))
        return found

    def tokenizer(self) -> Tokenizer:
        """The tokenizer that the rollouts were made with. Raises UserError: it is not to be had."""
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = self._load_tokenizer()
            return self._tokenizer

    def _load_tokenizer(self) -> Tokenizer:
        from mempo.storage.model_loading import folder_tokenizer  # transformers: a list of rollouts does without

        def load(place: Path | str) -> Tokenizer:
            return folder_tokenizer(model_folder(str(place), "tokenizer", weights=False))

        if self._named is not None:
            return load(self._named)
        served = self.setting("server")
        if isinstance(served, Mapping):
            from mempo.config.server import ServerSettings
            from mempo.engine.server.connect import open_tokenizer

            return open_tokenizer(ServerSettings(**served))
        places = self._models()
        reasons = []
        for place in places:
            try:
                return load(place)
            except UserError as error:
                reasons.append(str(error))
        why = reasons[-1] if reasons else "the folder names no model"
        raise UserError(f"the tokenizer of {self.path} cannot be loaded ({why}); name one with --tokenizer")

    def _models(self) -> Sequence[Path | str]:
        """Where the tokenizer may be, the likeliest first."""
        own = [
            self.path / "final",
            *(c.path for c in reversed(RunFolder(self.path).checkpoints())),
            self.path / "start",
        ]
        found: list[Path | str] = [path for path in own if path.is_dir()]
        if self.is_evaluation:
            policy = read_json(self.path / "identity.json", RECORD, PUT_BACK).get("policy")
            # An evaluation lies in its run, which may have been moved.
            near = [self.path.parent.parent / "final"] if self.path.parent.name == "evaluations" else []
            near += [Path(policy)] if isinstance(policy, str) else []  # not from a hub: it may be a server's name
            found += [path for path in near if path.is_dir()]
        named = [self.setting("model.path"), self.setting("start")]
        return found + [value for value in named if isinstance(value, str)]

    def table(self) -> list[tuple[str, ...]]:
        """Rows under `TABLE_HEAD`: the metrics of every evaluation, by number of objectives."""
        if self.is_evaluation:
            file = self.path / "evaluation.json"
            found = list(_record(file).items()) if exists(file) else []
        else:
            names = (("start", "evaluation-start"), ("after RL", "evaluation-final"))
            files = [(name, self.path / f"{stem}.json") for name, stem in names]
            found = [(name, _record(file)) for name, file in files if exists(file)]
        rows = []
        for name, by_k in found:
            for k, metrics in by_k.items() if isinstance(by_k, Mapping) else ():
                if isinstance(metrics, Mapping):
                    numbers = {key: value for key, value in metrics.items() if isinstance(value, int | float)}
                    n = numbers.get("scored_questions", numbers.get("questions"))
                    asked = numbers.get("questions")
                    of = f" of {asked:.0f}" if n is not None and asked is not None and n < asked else ""
                    rows.append((visible(str(k)), "–" if n is None else f"{n:.0f}{of}", visible(name), *cells(numbers)))
        return sorted(rows, key=lambda row: (len(row[0]), row[0]))

    def agent_name(self, file: str) -> str:
        """What a rollout file is called: agents of an evaluation by their name."""
        return visible(str(self._agents().get(file, {}).get("name", file)))

    def _agents(self) -> dict[str, dict[str, Any]]:
        return EvalFolder(self.path).agents() if self.is_evaluation else {}

    def commands(self) -> list[dict[str, Any]]:
        """The commands that worked on the folder, as `mempo` wrote them down."""
        file = self.path / "commands.jsonl"
        if not file.is_file():
            return []
        lines = file.read_text("utf-8", "replace").splitlines()
        return [record for record in map(_parsed, lines) if isinstance(record, dict)]


def open_folders(paths: Sequence[Path], tokenizer: str | None = None) -> list[ViewedFolder]:
    """The folders, each followed by the evaluations in it. Raises UserError."""
    found = []
    names = [path.resolve().name for path in paths]
    for path, name in zip(paths, names, strict=True):
        label = str(path) if names.count(name) > 1 else name
        found.append(ViewedFolder(path, label, tokenizer))
        for inner in sorted((path / "evaluations").glob("*/config.yaml")):
            found.append(ViewedFolder(inner.parent, f"{label}/evaluations/{inner.parent.name}", tokenizer))
    return found


def _file_order(path: Path, agents: Sequence[str]) -> tuple[int, int, str]:
    if path.stem in agents:
        return (0, agents.index(path.stem), "")
    step = _STEP.fullmatch(path.stem)
    if step:
        return (1, int(step[1]), "")
    return {"evaluation-start": (0, 0, ""), "evaluation-final": (2, 0, "")}.get(path.stem, (3, 0, path.stem))


def _record(file: Path) -> dict[str, Any]:
    return read_json(file, RECORD, PUT_BACK)


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
