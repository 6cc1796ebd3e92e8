"""The folder of an evaluation, which outlives a kill: every finished rollout is in it at once.

| file | what |
|---|---|
| config.yaml | the resolved configuration |
| identity.json | what was evaluated: the policy and its weights, the corpus |
| agents.json | by rollout file: name, context and grammar of the agent |
| rollouts/AGENT.jsonl | a line a rollout, appended as it ends; AGENT.tokens beside it has the token arrays |
| rollouts/AGENT.notes.jsonl | the memory reward of each rollout's notes, where the policy could be asked |
| rollouts/AGENT.judge.jsonl | verdicts of a judge (`mempo score --judge`) |
| server.json | what a model server can do, and how often it was asked the last time, given up or not |
| evaluation.json | measures by agent and number of objectives |
| tables/ | the table as Markdown, CSV and LaTeX; by-KEY where rows name several sources, types or levels |

A rollout is known by its question's id and its number. Of two lines with one key the later one counts: that is how a
rollout that infrastructure spoiled is made again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, StringConstraints, TypeAdapter, with_config
from typing_extensions import TypedDict

from mempo.config.evaluate import AgentSpec
from mempo.config.yaml_text import dump_yaml
from mempo.errors import UserError
from mempo.evaluate.saved import read_rollouts
from mempo.question import Question
from mempo.read_files import PUT_BACK, RECORD, exists, read_json, read_yaml
from mempo.runs.append import Key
from mempo.runs.files import write_whole
from mempo.runs.folder import Completed, changed_keys, without
from mempo.whole import lone_process

_OWN = ("agents.json", "identity.json", "rollouts", "evaluation.json", "tables", "server.json", "metrics.jsonl")
"""Names that an evaluation would write over, or that say that a training run is here."""


@with_config(ConfigDict(extra="allow"))
class _Agent(TypedDict):
    name: str


_FILE_NAME = Annotated[str, StringConstraints(pattern=r"^[\w.-]+$")]
_AGENTS: TypeAdapter[Any] = TypeAdapter(dict[_FILE_NAME, _Agent])

FREE_KEYS = (
    "output",
    "data.objectives",
    "data.test_objectives",
    "data.skip_bad",
    "data.client",
    "evaluate.agents",
    "evaluate.max_errors_in_row",
    "evaluate.max_in_flight",
    "evaluate.questions",
    "evaluate.rollouts_per_question",
    "model.threads",
    "rl",
    "server.extra",
    "server.key_variable",
    "server.max_concurrent",
    "server.retry",
    "server.timeout_s",
    "server.url",
    "sft",
)
"""May differ when an evaluation goes on: which rollouts are made, how many and how fast, but not what they are like."""


class EvalFolder:
    def __init__(self, path: Path) -> None:
        self.path = path

    def exists(self) -> bool:
        return exists(self.path / "config.yaml")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One process at a time; the lock goes with the process.

        Raises:
            UserError: another process has it, or the folder cannot be written.
        """
        with lone_process(
            self.path,
            lambda error: f"--out {str(self.path)!r} cannot be written ({error}); choose another folder",
            f"another process evaluates into {self.path}; wait for it, or choose another --out",
        ):
            yield

    def refuse_changes(
        self, config: Mapping[str, Any], identity: Mapping[str, Any], completed: Completed | None = None
    ) -> None:
        """Nothing is written. `completed` as for `RunFolder.check`.

        Raises:
            UserError: the folder holds an evaluation of something else, or one made otherwise (the changes are listed),
                or it holds a run.
        """
        if not self.exists():
            there = [name for name in _OWN if exists(self.path / name)]
            of_a_start = there in (["identity.json"], ["agents.json", "identity.json"])
            if of_a_start and "policy" in read_json(self.path / "identity.json", RECORD, PUT_BACK):
                return  # it was killed before it played anything
            if there:
                raise UserError(
                    f"{self.path} holds {', '.join(there)}, and no evaluation that could go on; choose another --out"
                )
            return
        if not exists(self.path / "identity.json"):
            raise UserError(f"{self.path} holds a run, not an evaluation; choose another --out")
        old_config: Mapping[str, Any] = read_yaml(self.path / "config.yaml", PUT_BACK)
        old_identity = read_json(self.path / "identity.json", RECORD, PUT_BACK)
        if completed is not None:
            old_config = completed(old_config)
        changed = changed_keys(without(old_config, FREE_KEYS), without(config, FREE_KEYS))
        # The weights say what a policy is; its folder may have been moved.
        moved = ("policy",) if "weights" in old_identity and "weights" in identity else ()
        changed += changed_keys(without(old_identity, moved), without(dict(identity), moved))
        if changed:
            raise UserError(
                f"{self.path} holds an evaluation that was made otherwise; choose another --out, or put back: "
                + "; ".join(changed)
            )

    def begin(
        self,
        config: Mapping[str, Any],
        identity: Mapping[str, Any],
        specs: Sequence[AgentSpec],
        completed: Completed | None = None,
    ) -> None:
        """Write what is evaluated, or go on with it. Raises as `refuse_changes` does."""
        self.refuse_changes(config, identity, completed)
        write_whole(self.path / "identity.json", json.dumps(dict(identity), indent=1) + "\n")
        known = self.agents() | {spec.file_name: asdict(spec) for spec in specs}
        write_whole(self.path / "agents.json", json.dumps(known, indent=1) + "\n")
        write_whole(self.path / "config.yaml", dump_yaml(config))  # last: with it the folder holds an evaluation

    def agents(self) -> dict[str, dict[str, Any]]:
        """`{file name: agent}`, in the order in which they were first evaluated."""
        file = self.path / "agents.json"
        return read_json(file, _AGENTS, PUT_BACK) if exists(file) else {}

    def rollouts(self, file_name: str) -> Path:
        return self.path / "rollouts" / f"{file_name}.jsonl"

    def notes(self, file_name: str) -> Path:
        return self.path / "rollouts" / f"{file_name}.notes.jsonl"

    def lines(self, file_name: str) -> dict[Key, dict[str, Any]]:
        """The rollouts of an agent without their tokens, with their notes' rewards and a judge's verdicts."""
        return read_rollouts(self.rollouts(file_name))


def refuse_changed_questions(lines: Mapping[Key, Mapping[str, Any]], questions: Sequence[Question], file: Path) -> None:
    """Raises UserError: a saved rollout answers another question than the one with its id now, or its gold is other."""
    now = {question.id: question for question in questions}
    for (question_id, _), line in lines.items():
        question = now.get(question_id)
        if question is None:
            continue
        if line.get("question") != question.text or line["gold"] != json.loads(json.dumps(question.gold)):
            raise UserError(
                f"question {question_id!r} has changed since {file} was made; put the old questions back, or choose "
                "another --out"
            )


def weights_mark(folder: Path) -> str:
    """What a model is, without reading gigabytes: names, sizes, and both ends of every file of weights."""
    digest = hashlib.sha256()
    for file in sorted((*folder.glob("*.safetensors"), *folder.glob("tokenizer*.json"), *folder.glob("config.json"))):
        size = file.stat().st_size
        digest.update(f"{file.name} {size} ".encode())
        with file.open("rb") as opened:
            digest.update(opened.read(1 << 20))
            opened.seek(max(size - (1 << 20), 0))
            digest.update(opened.read())
    return digest.hexdigest()[:16]
