"""Agents to compare: a name stands for what the policy sees, the grammar its turns are judged by, and its prompt.

| name | sees | notes | tools |
|---|---|---|---|
| `memory` | last note, last action, last tool result (MemPO) | yes | yes |
| `full` | the whole history | yes | yes |
| `react` | the whole history | forbidden | yes |
| `last_turn` | the whole last turn and its tool result (MEM1) | as configured | yes |
| `generations` | every turn of its own, the last tool result alone | as configured | yes |
| `window(k)` | the last k turns with their tool results | as configured | yes |
| `no_tools` | the question | forbidden | none: it answers at once |

The configuration's own context has the configuration's notes, whatever the table says. `package.module:factory` is a
context of your own, with notes as configured. All play the same loop with the same limits; a policy that was trained
with notes and is asked to do without them is judged as an agent without notes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mempo.context import is_known_context
from mempo.errors import ConfigError, nearest
from mempo.imports import is_import_path
from mempo.protocol import Presence, TurnGrammar

NAMES = ("memory", "full", "react", "last_turn", "generations", "window(k)", "no_tools")
_WITH_NOTES = ("memory", "full")
_WITHOUT_NOTES = ("react", "no_tools")


@dataclass(frozen=True)
class AgentSpec:
    """`notes`: what the agent's grammar says of notes from the second turn on. `tools` False: it has none, and one
    turn."""

    name: str
    context: str
    notes: Presence
    first_note: Presence
    tools: bool = True

    @property
    def file_name(self) -> str:
        """The name of its rollout file, without characters that mean something to a shell or a file system."""
        return "".join(char if char.isalnum() or char in "_-." else "-" for char in self.name).strip("-")


def agent_spec(name: str, notes: Presence, first_note: Presence, own: str | None = None) -> AgentSpec:
    """The agent of a name; `notes` and `first_note` are those of the configuration (`agent.*`), and `own` is its
    context: the agent of that name is the configuration's own, grammar included.

    Raises:
        ConfigError: unknown name, with the nearest known one.
    """
    name = name.strip().replace(" ", "")
    if name != "no_tools" and not is_known_context(name) and not is_import_path(name):
        raise ConfigError(f"unknown agent {name!r}{nearest(name, NAMES)}; known: {', '.join(NAMES)}")
    if name in _WITHOUT_NOTES:
        return AgentSpec(name, "react", "forbidden", "forbidden", tools=name != "no_tools")
    if name == own:
        return AgentSpec(name, name, notes, "forbidden" if notes == "forbidden" else first_note)
    if name in _WITH_NOTES and notes == "forbidden":  # a configuration of an agent without memory
        return AgentSpec(name, name, "required", "optional")
    return AgentSpec(name, name, notes, first_note)


def agent_specs(names: Sequence[str], notes: Presence, first_note: Presence, own: str | None = None) -> list[AgentSpec]:
    """The agents of several names, in their order.

    Raises:
        ConfigError: an unknown name, one that stands twice, two that would share a file.
    """
    specs = [agent_spec(name, notes, first_note, own) for name in names]
    seen: dict[str, str] = {}
    for spec in specs:
        if spec.file_name in seen:
            other = seen[spec.file_name]
            raise ConfigError(
                f"agents: {spec.name} stands twice; name every agent once"
                if other == spec.name
                else f"agents: {other} and {spec.name} would share the file {spec.file_name}.jsonl; rename one"
            )
        seen[spec.file_name] = spec.name
    return specs


def instructions(grammar: TurnGrammar) -> str:
    """The rules of the agent's language, for a model that was not fine-tuned to it, with a place for the question."""
    actions = {
        "search": "<search>your query</search> to search",
        "access": "<access>an address</access> to open a page",
        "answer": "<answer>your answer</answer> to answer and end",
    }
    known = [actions.get(action, f"<{action}>…</{action}>") for action in grammar.actions]
    lines = ["Answer the question at the end."]
    if len(grammar.actions) > 1:
        lines += [
            "You work in turns. Each turn is, in this order and with nothing outside the tags:",
            *(
                [
                    "- <mem>a note</mem> from the second turn on: everything found so far that the answer needs; older "
                    "turns may no longer be shown to you"
                ]
                if grammar.notes != "forbidden"
                else []
            ),
            "- <think>your reasoning</think>",
            f"- exactly one of: {'; '.join(known)}",
            "The result of a search or a page comes back in <tool_response>; never write that tag yourself.",
        ]
    else:
        lines.append(f"Write <think>your reasoning</think>, then {known[0]}; nothing outside the tags.")
    lines += [
        "If several questions are joined by ';', give one answer for each, joined by ';', in their order.",
        "Keep answers short.",
        "",
        "Question: {question}",
    ]
    return "\n".join(lines)
