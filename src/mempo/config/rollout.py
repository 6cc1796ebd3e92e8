"""Settings of a rollout: what the policy is shown, what its turns may hold, and where a rollout ends."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date as day
from typing import Any, Literal

from pydantic import Field, field_validator

from mempo.config.base import Settings, is_import_path
from mempo.errors import nearest

CONTEXTS = ("full", "react", "memory", "last_turn", "generations", "window(k)")
"""The built-in contexts; `mempo.rollout.context` says what each shows the policy."""
BUILTIN_TOOLS = ("search", "access")
Presence = Literal["required", "optional", "forbidden"]
"""Whether a turn holds a note."""


def is_known_context(name: str) -> bool:
    return name in CONTEXTS[:-1] or window_of(name) is not None


def window_of(name: str) -> int | None:
    """k of `window(k)`; None for any other name."""
    match = re.fullmatch(r"window\((\d+)\)", name)
    return int(match.group(1)) if match and int(match.group(1)) > 0 else None


class PromptSettings(Settings):
    """How contents are wrapped."""

    template: Literal["auto", "plain", "chat"] = "auto"
    """`chat` uses the tokenizer's chat template, `plain` none, `auto` the template where the tokenizer has one."""
    system: str = "You are a helpful assistant."
    """System prompt; with `plain` it is put before the question; empty means none."""
    question: str = "{question}"
    """Text around the question; instructions for a model that was not fine-tuned go here."""
    force_mem: bool = False
    """Begin every turn from the second on with `<mem>`, written for the policy (no loss, no advantage)."""
    date: str | None = None
    """Today's date for chat templates that ask for it, such as 2026-03-01. None: the day on which the run or the
    evaluation began, which is written here, so that a resumed one has the same prompts."""

    @field_validator("date", mode="before")
    @classmethod
    def _is_a_date(cls, value: Any) -> Any:
        if value is None or type(value) is day:  # YAML reads a date as one
            return value and value.isoformat()
        try:
            return day.fromisoformat(value).isoformat()
        except (TypeError, ValueError):
            raise ValueError(f"{value!r} is not a date; write it as 2026-03-01") from None


class AgentSettings(Settings):
    """Agent = context + grammar + prompt."""

    context: str = "memory"
    """`full`, `react`, `memory`, `last_turn`, `generations`, `window(k)`, or `package.module:factory`, called with the
    renderer."""
    notes: Presence = "required"
    """Whether turns from the second on must, may or must not have a note; `forbidden` is an agent without memory
    (ReAct)."""
    first_note: Presence = "optional"
    """The same for the first turn, in which there is nothing to note yet."""
    tools: tuple[str, ...] = ("search", "access")
    """`search`, `access`, or `package.module:factory` for a tool of your own, which answers one of these tags or one
    of its own."""

    @field_validator("context")
    @classmethod
    def _known_context(cls, value: str) -> str:
        if not is_import_path(value) and not is_known_context(value):
            raise ValueError(f"unknown context {value!r}{nearest(value, CONTEXTS)}; known: {', '.join(CONTEXTS)}")
        return value

    @field_validator("tools")
    @classmethod
    def _known_tools(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for tool in value:
            if not is_import_path(tool) and tool not in BUILTIN_TOOLS:
                raise ValueError(f"unknown tool {tool!r}{nearest(tool, BUILTIN_TOOLS)}; known: search, access")
        return value


class LimitSettings(Settings):
    """Limits of a rollout, in tokens and turns."""

    max_turns: int = Field(default=8, ge=1)
    """Turns of a rollout."""
    max_turn_tokens: int = Field(default=512, ge=1)
    """Generated tokens of one turn."""
    max_rollout_tokens: int | None = Field(default=None, ge=1)
    """Generated tokens of all turns together."""
    max_context_tokens: int = Field(default=4096, ge=2)
    """Prompt and generation of one step; never more than the model's window."""
    min_turn_tokens: int = Field(default=16, ge=1)
    """Room kept free for the reply when a context is cut inside its passages."""
    max_obs_tokens: int = Field(default=1024, ge=1)
    """One tool result, wrapper included."""
    max_note_tokens: int | None = Field(default=None, ge=1)
    """A longer note is refused: it counts as truncated, and the note before it stays the current one."""
    max_malformed_turns: int | None = Field(default=None, ge=1)
    """This many turns in a row without a valid action end a rollout; None: never."""
    max_tool_s: float = Field(default=600.0, gt=0)
    """Seconds of one tool call, retries included; a tool that takes longer counts as failed."""
    max_tool_errors: int = Field(default=2, ge=1)
    """This many failed tool calls end a rollout; a single one already excludes it from every statistic."""


@dataclass(frozen=True)
class DecodingSettings:
    """How turns are sampled; limits come from the agent."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
