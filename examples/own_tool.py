"""Own tool: `agent.tools=[examples.own_tool:MoonTool]`. It answers `<search>` from a table instead of a corpus."""

from __future__ import annotations

from mempo.rollout.interfaces import ToolErrorKind, ToolResult

MOONS = {"Earth": 1, "Mars": 2, "Mercury": 0, "Venus": 0}


class MoonTool:
    """Made without arguments, once per run. `name` is the tag it answers: `search` or `access`."""

    name = "search"

    async def call(self, argument: str) -> ToolResult:
        """Never raises: bad arguments are answered with a sentence, and the policy can try again."""
        planet = argument.strip().title()
        if planet not in MOONS:
            # `UNAVAILABLE` would be for a server that does not answer: it takes the rollout out of every statistic.
            return ToolResult(notice=f"error: no planet {planet!r} in the table", error=ToolErrorKind.BAD_CALL)
        # Passages may be cut where room is short; a notice never is.
        return ToolResult(passages=(f"moons of {planet}: {MOONS[planet]}",))
