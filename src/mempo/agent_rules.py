"""What contradicts itself in the settings of an agent: its notes, its prompt, and its limits."""

from __future__ import annotations

from mempo.protocol import Presence


def contradiction(
    notes: Presence,
    first_note: Presence,
    *,
    force_mem: bool,
    max_turns: int,
    max_turn_tokens: int,
    max_note_tokens: int | None,
) -> str | None:
    """The first contradiction as a sentence with its remedy, or None. `notes`, `first_note`: `agent.*`; `force_mem`:
    `prompt.force_mem`; the rest: `limits.*`."""
    if notes == "forbidden" and force_mem:
        return (
            "prompt.force_mem begins every turn from the second on with <mem>, but agent.notes is forbidden, so no "
            "such turn could keep the format; set prompt.force_mem=false, or agent.notes=required"
        )
    if notes == "forbidden" and first_note == "required":
        return (
            "agent.first_note is required, but agent.notes is forbidden, which forbids notes in the first turn too; "
            "set agent.first_note=optional, or agent.notes=required"
        )
    if notes == "forbidden" and max_note_tokens is not None:
        return (
            f"limits.max_note_tokens is {max_note_tokens}, but agent.notes is forbidden, so there is no note to limit; "
            "set limits.max_note_tokens=null"
        )
    if max_note_tokens is not None and max_note_tokens >= max_turn_tokens:
        return (
            f"limits.max_note_tokens {max_note_tokens} is never reached, since a whole turn has limits.max_turn_tokens "
            f"{max_turn_tokens}; set a smaller one, or limits.max_note_tokens=null"
        )
    if max_turns == 1 and first_note == "forbidden" and notes == "required":
        return (
            "agent.notes is required from the second turn on and agent.first_note is forbidden, but limits.max_turns "
            "is 1, so no note is ever written; set agent.notes=forbidden, or more turns"
        )
    return None
