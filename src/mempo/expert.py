"""What a scripted expert is, and how it writes. `demos.py` plays them and has one for search; worlds bring others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mempo.settings import Settings


class ExpertSettings(Settings):
    """How the expert writes. Outside these words it copies what it asks for and what it finds."""

    loss: float = 0.0
    """Chance that a newly found fact is left out of the note, for good."""
    lossless_share: float = 0.0
    """Share of the episodes in which nothing is lost, so that a complete note is nothing new to the policy."""
    known: str = "{query}: {found}"
    """How a note states a fact."""
    lost: str = ""
    """What a note says in place of a fact that it lost, `{query}` filled in; empty: nothing, the fact is gone without a
    trace."""
    separator: str = "; "
    """Between facts in a note."""
    open_separator: str = "; "
    """Between open queries in a note."""
    nothing: str = "nothing"
    """What a note says when nothing is known."""
    open: str = "\nopen: {queries}"
    """What follows the facts while something is open; empty leaves it out."""
    think_search: str = "next: {query}"
    """The thought before anything but an answer; `{query}` is what is searched for, or where an expert of a world is
    going; such experts may fill in more."""
    think_answer: str = "all done"
    joiner: str = "; "
    """Between the answers of several objectives."""
    unknown: str = "unknown"
    """The answer to an objective whose fact the expert does not know."""
    omit_unknown: bool = False
    """Leave such objectives out of the answer, unless there is nothing else to say. Easier to learn than saying
    `unknown` in the right places; wrong too."""


class Expert(Protocol):
    """A scripted agent on one rollout. It should know only what it was shown, as the policy does."""

    def turn(self, seen: str) -> Sequence[tuple[str, str]]:
        """The next turn as (tag, text) pairs. `seen` is what the context shows after the question, "" at first."""
        ...

    def allows(self) -> str | None:
        """What the note of the last turn allows to say to the probe: the target of a probe sample. None: no sample."""
        ...
