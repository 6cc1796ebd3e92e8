"""The folder of an evaluation, which outlives a kill: every finished rollout is in it at once.

| file | what |
|---|---|
| config.yaml | the resolved configuration |
| identity.json | what was evaluated: the policy and its weights, the corpus, how a fixed question is rendered |
| agents.json | by rollout file: name, context and grammar of the agent, and how much it was asked for |
| rollouts/AGENT.jsonl | a line a rollout, appended as it ends; AGENT.tokens beside it has the token arrays |
| rollouts/AGENT.notes.jsonl | the memory reward of each rollout's notes, where the policy could be asked |
| rollouts/AGENT.judge.jsonl | verdicts of a judge (`mempo score --judge`) |
| server.json | what a model server can do, and how often it was asked the last time, given up or not |
| evaluation.json | metrics by agent and number of objectives |
| tables/ | the table as Markdown, CSV and LaTeX; by-KEY where rows name several sources, types or levels |

A rollout is known by its question's id and its number. Of two lines with one key the later one counts: that is how a
rollout that failed for infrastructure reasons is made again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, NotRequired

from pydantic import ConfigDict, StringConstraints, TypeAdapter, with_config
from typing_extensions import TypedDict

from mempo.config.evaluate import AgentSpec
from mempo.config.yaml_text import dump_yaml
from mempo.errors import UserError
from mempo.evaluate.compare import Asked
from mempo.evaluate.saved import read_rollouts
from mempo.rollout.question import Question
from mempo.storage.append import Key
from mempo.storage.atomic import lone_process
from mempo.storage.files import write_atomic
from mempo.storage.read_files import PUT_BACK, RECORD, exists, read_json, read_yaml
from mempo.storage.run_folder import Completed, changed_keys, shortened, without

_OWN = ("agents.json", "identity.json", "rollouts", "evaluation.json", "tables", "server.json", "metrics.jsonl")
"""Names that an evaluation would write over, or that say that a training run is here."""


@with_config(ConfigDict(extra="allow"))
class _Agent(TypedDict):
    name: str


class _Prompt(TypedDict):
    text: str
    ids: str


@with_config(ConfigDict(extra="allow"))
class _Identity(TypedDict):
    prompt: NotRequired[_Prompt]


_FILE_NAME = Annotated[str, StringConstraints(pattern=r"^[\w.-]+$")]
_IDENTITY: TypeAdapter[Any] = TypeAdapter(_Identity)
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
    "track",
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
                    f"{self.path} holds {', '.join(there)}, and no evaluation that could be resumed; "
                    "choose another --out"
                )
            return
        if not exists(self.path / "identity.json"):
            raise UserError(f"{self.path} holds a run, not an evaluation; choose another --out")
        old_config: Mapping[str, Any] = read_yaml(self.path / "config.yaml", PUT_BACK)
        old_identity = read_json(self.path / "identity.json", _IDENTITY, PUT_BACK)
        if completed is not None:
            old_config = completed(old_config)
        changed = changed_keys(without(old_config, FREE_KEYS), without(config, FREE_KEYS))
        # The weights say what a policy is; its folder may have been moved.
        moved = ("policy",) if "weights" in old_identity and "weights" in identity else ()
        apart = ("prompt", *moved)
        changed += changed_keys(without(old_identity, apart), without(dict(identity), apart))
        changed += prompt_changes(old_identity.get("prompt"), identity.get("prompt"))
        if changed:
            raise UserError(
                f"{self.path} holds an evaluation with other settings; choose another --out, or restore: "
                + shortened(changed)
            )

    def refuse_other_agents(self, specs: Sequence[AgentSpec]) -> None:
        """Raises UserError: the folder holds rollouts of an agent with one of these names that plays otherwise, which
        an earlier release may have made of the same configuration."""
        known = self.agents()
        for spec in specs:
            before = {key: known.get(spec.file_name, {}).get(key) for key in asdict(spec)}
            changed = changed_keys(before, asdict(spec)) if spec.file_name in known else []
            if changed:
                raise UserError(
                    f"{self.path} holds rollouts of an agent {spec.name} with other settings ({'; '.join(changed)}); "
                    "choose another --out"
                )

    def begin(
        self,
        config: Mapping[str, Any],
        identity: Mapping[str, Any],
        specs: Sequence[AgentSpec],
        asked: Asked,
        completed: Completed | None = None,
    ) -> None:
        """Write what is evaluated, or go on with it. `asked`: of every agent in `specs`; what was asked for before is
        kept where it is more. Raises as `refuse_changes` does."""
        self.refuse_changes(config, identity, completed)
        write_atomic(self.path / "identity.json", json.dumps(dict(identity), indent=1) + "\n")
        known = self.agents()
        for spec in specs:
            before = asked_of(known.get(spec.file_name, {}))
            counts = {
                k: max(asked.questions.get(k, 0), before.questions.get(k, 0))
                for k in {*asked.questions, *before.questions}
            }
            record = {
                "samples": max(asked.samples or 1, before.samples or 1),
                "questions": dict(sorted(counts.items())),
            }
            known[spec.file_name] = asdict(spec) | {"asked": record}
        write_atomic(self.path / "agents.json", json.dumps(known, indent=1) + "\n")
        write_atomic(self.path / "config.yaml", dump_yaml(config))  # last: with it the folder holds an evaluation

    def agents(self) -> dict[str, dict[str, Any]]:
        """`{file name: agent}`, in the order in which they were first evaluated."""
        file = self.path / "agents.json"
        return read_json(file, _AGENTS, PUT_BACK) if exists(file) else {}

    def server_record(self) -> dict[str, Any]:
        """What a model server can do and was asked, empty where there was none."""
        file = self.path / "server.json"
        return read_json(file, RECORD, "remove it to continue without what the server said") if exists(file) else {}

    def rollouts(self, file_name: str) -> Path:
        return self.path / "rollouts" / f"{file_name}.jsonl"

    def notes(self, file_name: str) -> Path:
        return self.path / "rollouts" / f"{file_name}.notes.jsonl"

    def lines(self, file_name: str) -> dict[Key, dict[str, Any]]:
        """The rollouts of an agent without their tokens, with their notes' rewards and a judge's verdicts."""
        return read_rollouts(self.rollouts(file_name))


def prompt_changes(old: Mapping[str, str] | None, new: Mapping[str, str] | None) -> list[str]:
    """How the prompt of a fixed question differs (`prompt_probe`), as both texts around the first
    difference; nothing where it does not, or where an earlier release did not say."""
    if old is None or new is None or old == new:
        return []
    if old["text"] == new["text"]:
        return ["the same prompt has other token ids (another tokenizer)"]
    alike = takewhile(lambda pair: pair[0] == pair[1], zip(old["text"], new["text"], strict=False))
    start = max(sum(1 for _ in alike) - 10, 0)
    before, now = (text["text"][start : start + 36] for text in (old, new))
    return [f"prompts (chat template or date) had …{before!r}…", f"they would have …{now!r}…"]


def asked_of(agent: Mapping[str, Any]) -> Asked:
    """What an agent of `agents.json` was asked for; evaluations of earlier versions do not say."""
    try:
        record = agent["asked"]
        return Asked({int(k): int(n) for k, n in record["questions"].items()}, int(record["samples"]))
    except (KeyError, TypeError, ValueError, AttributeError):
        return Asked()


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
