"""From a study to its runs: one SFT start for each start and seed, and from each of them every arm with every RL seed.

Every configuration is resolved and checked here, before anything runs.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mempo.config import Resolved, resolve
from mempo.errors import ConfigError
from mempo.evaluate.folder import without
from mempo.setup import advantage_function, custom_score
from mempo.study.code import code_digest, named_content
from mempo.study.settings import StartSettings, Study

OURS = ("output", "seed", "start", "rl.seed")
"""Settings that a study gives to its runs itself."""
_OF_THE_START = ("sft", "toy", "model.path")
"""Settings that arms share with their start."""
_MOST_KEPT = 40
"""Checkpoints of an SFT that other starts begin from: each is a whole policy on the disk."""
_BESIDE_START = ("output", "start", "advantages", "rl")
"""Settings that change nothing in a start."""


@dataclass(frozen=True)
class Task:
    """One run. `arm` and `rl_seed` None: a start. `after`: the key of the start it begins from. `key`: of its content;
    two runs with one key are the same run. `settings`: those that the study gives to it beside those of all runs."""

    key: str
    start: str
    arm: str | None
    seed: int
    rl_seed: int | None
    resolved: Resolved
    settings: tuple[str, ...] = ()
    after: str | None = None

    @property
    def folder(self) -> Path:
        return Path(self.resolved.config.output)

    @property
    def title(self) -> str:
        if self.arm is None:
            return f"start {self.start}, seed {self.seed}"
        more = "" if self.rl_seed in (None, self.seed) else f", RL seed {self.rl_seed}"
        return f"{self.arm} from {self.start}, seed {self.seed}{more}"


def plan(study: Study, out: Path, more: Sequence[str] = (), only: Sequence[str] = ()) -> list[Task]:
    """All runs, each start before its arms. `more`: settings of every run that win; `only`: these arms.

    Raises:
        ConfigError: an arm that is not there, a setting that cannot be, told with the arm and the start.
    """
    unknown = [name for name in only if name not in study.arms]
    if unknown:
        raise ConfigError(f"no arm {unknown[0]!r} in the study; there are: {', '.join(study.arms)}")
    arms = {name: overrides for name, overrides in study.arms.items() if not only or name in only}
    _refuse_ours("set", study.set)
    _refuse_ours("the command line", more)
    for name, overrides in arms.items():
        _refuse_of_the_start(f"arm {name}", overrides)
    tasks: dict[str, Task] = {}
    for seed in study.seeds:
        for name in study.starts:
            start = _start(study, name, seed, out, more, tasks)
            for rl_seed in study.rl_seeds or (seed,):
                for arm, overrides in arms.items():
                    task = _arm(study, name, start, arm, overrides, rl_seed, out, more)
                    if task.key in tasks:
                        raise ConfigError(f"{task.title} is the same run as {tasks[task.key].title}; leave one out")
                    tasks[task.key] = task
    return list(tasks.values())


def _start(study: Study, name: str, seed: int, out: Path, more: Sequence[str], tasks: dict[str, Task]) -> Task:
    """The task of a start, added to `tasks` with what it needs."""
    settings = study.starts[name]
    if settings.sft_of is None or settings.sft_step is None:
        sft = settings.sft_of or name
        task = _sft(study, sft, seed, out, more)
        return tasks.setdefault(task.key, task)
    source = tasks.setdefault((sft := _sft(study, settings.sft_of, seed, out, more)).key, sft)
    last = source.resolved.config.sft.steps
    if settings.sft_step >= last:
        raise ConfigError(
            f"starts: {name} takes step {settings.sft_step} of the SFT of {settings.sft_of}, which has {last} steps"
        )
    checkpoint = source.folder / "checkpoints" / f"sft-{settings.sft_step}"
    overrides = [*_common(study, study.starts[settings.sft_of], more), f"seed={seed}", "rl.steps=0"]
    resolved, key = _resolved(study.base, overrides, f"start {name}", _BESIDE_START, [source.key, settings.sft_step])
    task = Task(key, name, None, seed, None, _placed(resolved, out, f"{name}.start.seed{seed}", key, checkpoint))
    return tasks.setdefault(key, dataclasses.replace(task, after=source.key))


def _sft(study: Study, name: str, seed: int, out: Path, more: Sequence[str]) -> Task:
    settings = study.starts[name]
    _refuse_ours(f"start {name}", (*settings.set, *settings.rl))
    steps = [s.sft_step for s in study.starts.values() if s.sft_of == name and s.sft_step]
    kept = [f"sft.keep_every={math.gcd(*steps)}"] if steps else []
    overrides = [*_common(study, settings, more), *kept, f"seed={seed}", "rl.steps=0"]
    resolved, key = _resolved(study.base, overrides, f"start {name}", _BESIDE_START, [])
    if steps and (count := resolved.config.sft.steps // math.gcd(*steps)) > _MOST_KEPT:
        raise ConfigError(
            f"starts: the SFT of {name} would keep {count} checkpoints, one every {math.gcd(*steps)} steps, for those "
            f"at {', '.join(map(str, sorted(set(steps))))}; take steps that are multiples of a larger number, "
            f"{math.ceil(resolved.config.sft.steps / _MOST_KEPT)} or more"
        )
    placed = _placed(resolved, out, f"{name}.start.seed{seed}", key)
    return Task(key, name, None, seed, None, placed, (*settings.set, *more))


def _arm(
    study: Study, name: str, start: Task, arm: str, own: Sequence[str], rl_seed: int, out: Path, more: Sequence[str]
) -> Task:
    settings, label = study.starts[name], f"arm {arm} from start {name}"
    _refuse_of_the_start(f"start {name}, rl", settings.rl)
    sft = study.starts[settings.sft_of or name]
    overrides = [*_common(study, sft, ()), *settings.rl, *own, *more, f"seed={start.seed}", f"rl.seed={rl_seed}"]
    resolved, key = _resolved(study.base, overrides, label, ("output", "start"), [start.key])
    if not resolved.config.rl.steps:
        raise ConfigError(f"{label}: rl.steps is 0, so the arm would be its start; set rl.steps")
    folder = f"{name}.{arm}.seed{start.seed}.rl{rl_seed}"
    placed = _placed(resolved, out, folder, key, start.folder)
    return Task(key, name, arm, start.seed, rl_seed, placed, (*settings.rl, *own, *more), start.key)


def _common(study: Study, start: StartSettings, more: Sequence[str]) -> list[str]:
    # One thread a run: as many runs at a time as there are cores, and the same numbers however many those are.
    return ["model.threads=1", *study.set, *start.set, *more]


def _resolved(
    base: str, overrides: Sequence[str], label: str, beside: Sequence[str], of: Sequence[Any]
) -> tuple[Resolved, str]:
    """The configuration, and the key of its content: without the settings `beside`, with what the run is made `of`."""
    try:
        resolved = resolve(base, overrides)
        custom_score(resolved.config)
        advantage_function(resolved.config)
    except ConfigError as error:
        raise ConfigError(f"{label}: {error}") from error
    return resolved, content_key(resolved.plain(), beside, of)


def content_key(config: Mapping[str, Any], beside: Sequence[str], of: Sequence[Any]) -> str:
    """Of a configuration without the settings `beside` and its trackers, what it names, the code, and what the run is
    made `of`."""
    content = [without(config, [*beside, "track"]), named_content(config), code_digest(), list(of)]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()[:12]


def _placed(resolved: Resolved, out: Path, name: str, key: str, start: Path | None = None) -> Resolved:
    """The run in its folder, which has its key in the name: another content never meets it there."""
    changed = {"output": str(out / "runs" / f"{name}-{key}"), "start": None if start is None else str(start)}
    return Resolved(resolved.config.model_copy(update=changed), resolved.origins)


def _keys(overrides: Sequence[str]) -> list[str]:
    return [override.partition("=")[0].strip() for override in overrides]


def _refuse_ours(where: str, overrides: Sequence[str]) -> None:
    for key in _keys(overrides):
        if key in OURS:
            raise ConfigError(f"{where} sets {key}, which a study gives to each run itself; use seeds and rl_seeds")


def _refuse_of_the_start(where: str, overrides: Sequence[str]) -> None:
    _refuse_ours(where, overrides)
    for key in _keys(overrides):
        if any(key == name or key.startswith(f"{name}.") for name in _OF_THE_START):
            raise ConfigError(f"{where} sets {key}, but RL begins from a start that is trained once; set it in a start")
