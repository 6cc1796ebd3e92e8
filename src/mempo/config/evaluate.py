"""Settings of an evaluation, and the agents that it compares.

A name stands for what the policy sees, the grammar its turns are judged by, and its prompt.

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
context of your own, with notes as configured. All play the same loop with the same
limits; a policy that was trained with notes and is asked to do without them is judged as an agent without notes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field, field_validator

from mempo.config.base import Settings, is_import_path
from mempo.config.rollout import Presence, is_known_context
from mempo.errors import ConfigError, nearest


class EvalSettings(Settings):
    """How a policy is evaluated."""

    questions: int = Field(default=100, ge=1)
    """Test questions per number of objectives."""
    rollouts_per_question: int = Field(default=1, ge=1)
    """Samples of each question: their mean is Avg@k, and Pass@k is the share of questions with at least one right
    sample."""
    temperature: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """1: the policy as it was trained. 0: greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Sample only from the most likely tokens that together have this probability; 1: from all."""
    top_k: int = Field(default=0, ge=0)
    """Sample only from this many of the most likely tokens; 0: from all."""
    agents: tuple[str, ...] = ()
    """Agents that `mempo eval` compares (docs/evaluation.md); none: the configuration's own."""
    instructions: bool = False
    """Put the rules of each agent's turns before the question, for models that were not fine-tuned to them; replaces
    `prompt.question`."""
    max_in_flight: int = Field(default=256, ge=1)
    """Rollouts under way at once."""
    max_errors_in_row: int = Field(default=16, ge=1)
    """This many rollouts in a row that fail because of a server or tool end `mempo eval`; finished rollouts stay
    saved."""

    @field_validator("agents", mode="before")
    @classmethod
    def _one_or_more(cls, value: Any) -> Any:
        return tuple(name for name in value.split(",") if name.strip()) if isinstance(value, str) else value


AGENT_NAMES = ("memory", "full", "react", "last_turn", "generations", "window(k)", "no_tools")


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
        raise ConfigError(f"unknown agent {name!r}{nearest(name, AGENT_NAMES)}; known: {', '.join(AGENT_NAMES)}")
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
        ConfigError: an unknown name, one that is given twice, two that would share a file.
    """
    specs = [agent_spec(name, notes, first_note, own) for name in names]
    seen: dict[str, str] = {}
    for spec in specs:
        if spec.file_name in seen:
            other = seen[spec.file_name]
            raise ConfigError(
                f"agents: {spec.name} is given twice; name every agent once"
                if other == spec.name
                else f"agents: {other} and {spec.name} would share the file {spec.file_name}.jsonl; rename one"
            )
        seen[spec.file_name] = spec.name
    return specs
