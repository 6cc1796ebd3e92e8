"""A trained policy for others: one folder with weights, tokenizer, configuration, evaluations and a model card, here or
on the Hugging Face hub. `mempo eval` and `load_agent` take the folder or the name as they take a run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from mempo import __version__
from mempo.config import Config, resolve
from mempo.config.yaml_text import dump_yaml
from mempo.errors import UserError
from mempo.evaluate.grid import Grid
from mempo.run.evaluate import final_model
from mempo.storage.atomic import atomic_folder
from mempo.storage.files import write_atomic
from mempo.storage.model_files import may_be_hub_name, said
from mempo.storage.read_files import exists

_COLUMNS = (
    ("questions", "questions", "{:.0f}"),
    ("em", "exact match", "{:.1%}"),
    ("f1", "F1", "{:.1%}"),
    ("format_ok", "format kept", "{:.1%}"),
    ("memory/p_mem", "P(answer given the note)", "{:.3f}"),
    ("peak_context_tokens", "peak context, tokens", "{:.0f}"),
    ("total_tokens", "tokens of a rollout", "{:.0f}"),
)


class HubApi(Protocol):
    """What is used of `huggingface_hub.HfApi`."""

    def create_repo(self, repo_id: str, *, private: bool, exist_ok: bool) -> Any: ...

    def upload_folder(self, *, repo_id: str, folder_path: Path, commit_message: str) -> Any: ...


def export(run: Path, out: Path) -> Path:
    """Write the folder; `out` must not be there.

    Raises:
        UserError: the run has no policy or configuration, or `out` is taken.
    """
    if not exists(run / "config.yaml"):
        raise UserError(f"{run} is not a run folder (it has no config.yaml)")
    if out.exists():
        raise UserError(f"{out} is there already; name another folder")
    config, model = resolve(str(run)).config, final_model(run)
    with atomic_folder(out) as folder:
        for file in sorted(model.iterdir()):
            if file.suffix in (".json", ".jinja", ".safetensors", ".txt", ".model") and _is_policy(file.name):
                shutil.copyfile(file, folder / file.name)
        settings = {**config.model_dump(mode="json"), "output": f"runs/{run.resolve().name}", "start": None}
        write_atomic(folder / "config.yaml", dump_yaml(settings))
        for name, _ in _evaluations(run):
            shutil.copyfile(run / name, folder / name)
        write_atomic(folder / "README.md", card(run, config))
    return out


def push(run: Path, name: str, work: Path, private: bool = True, api: HubApi | None = None) -> None:
    """Export the run into `work` and upload it as `name`, which is made where it is not there.

    Raises:
        UserError: as `export`; `name` is not a name of the hub; the hub refused.
    """
    if not may_be_hub_name(name) or name.count("/") != 1:
        raise UserError(f"{name!r} is not a name on the hub; give OWNER/NAME")
    folder = export(run, work / "policy")
    if api is None:
        from huggingface_hub import HfApi

        api = HfApi()
    try:
        api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=folder, commit_message=f"A policy trained with mempo {__version__}")
    except Exception as error:  # no network, no permission, a full account: each with its own class
        raise UserError(f"the hub did not take {name} ({said(error, lines=1)}); log in with hf auth login") from error


def card(run: Path, config: Config) -> str:
    """The model card: what it is, how it was trained, what was measured, and what was not."""
    base = config.model.path if config.model.path and may_be_hub_name(config.model.path) else None
    head = {"library_name": "mempo", "tags": ["mempo", "agent", "memory", "reinforcement-learning"]}
    data, memory = config.data, config.memory
    source = f"the environment {data.environment}" if data.environment else "question files of the author's"
    signal = f"outcome and memory signal (`memory: {memory.preset}`)" if config.rl.memory_signal else "outcome alone"
    stages = [
        f"{config.sft.steps} steps of SFT" if config.sft.steps and not config.start else "",
        f"{config.rl.steps} steps of RL on {signal}, {config.rl.questions_per_step} questions x "
        f"{config.rl.rollouts_per_question} rollouts each"
        if config.rl.steps
        else "",
    ]
    return "\n".join(
        [
            "---",
            dump_yaml(head | ({"base_model": base} if base else {})).strip(),
            "---",
            "",
            f"# {run.resolve().name}",
            "",
            "A policy that answers questions in turns of `<mem>` (its own notes), `<think>` and one action, trained "
            f"with mempo {__version__}. What it sees of earlier turns: `agent.context: {config.agent.context}`.",
            "",
            "```python",
            "import mempo",
            "",
            'agent = mempo.load_agent("FOLDER or OWNER/NAME")',
            'print(agent.ask("your question").answer)',
            "```",
            "",
            "## Training",
            "",
            f"- started from {config.model.path or ('another run' if config.start else 'a toy model made by mempo')}",
            f"- data: {source}, objectives {', '.join(map(str, data.objectives))}; seed {config.seed}",
            *(f"- {stage}" for stage in stages if stage),
            "- every setting is in `config.yaml`",
            "",
            "## Results",
            "",
            *_tables(run),
            "## Limits",
            "",
            "- Only what stands in the table was measured, on such questions, with this corpus and these tools.",
            "- Notes and answers can be wrong, and pages that it reads can mislead it.",
            "- It expects the prompt, tools and limits of `config.yaml`.",
            "",
        ]
    )


def _is_policy(name: str) -> bool:
    return name not in ("optimizer.safetensors", "state.json")


def _evaluations(run: Path) -> Iterator[tuple[str, dict[str, Mapping[str, Any]]]]:
    for name in ("evaluation-start.json", "evaluation-final.json"):
        if exists(run / name):
            yield name, json.loads((run / name).read_text("utf-8"))


def _tables(run: Path) -> Iterator[str]:
    titles = {"evaluation-start.json": "Before RL", "evaluation-final.json": "After RL"}
    found = False
    for name, by_objectives in _evaluations(run):
        found = True
        rows = [
            [k, *("–" if found.get(key) is None else form.format(found[key]) for key, _, form in _COLUMNS)]
            for k, found in by_objectives.items()
        ]
        headers = ("objectives", *(title for _, title, _ in _COLUMNS))
        yield f"{titles[name]} (`{name}`):\n\n{Grid(headers, rows).markdown()}"
    if not found:
        yield "Nothing was measured.\n"
