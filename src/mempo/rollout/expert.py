"""What a scripted expert is, and how it writes. `train/expert_rollouts.py` plays them and has one for
search; environments bring others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Expert(Protocol):
    """A scripted agent on one rollout. It should know only what it was shown, as the policy does."""

    def turn(self, seen: str) -> Sequence[tuple[str, str]]:
        """The next turn as (tag, text) pairs. `seen` is what the context shows after the question, "" at first."""
        ...

    def allows(self) -> str | None:
        """What the note of the last turn allows to say to the probe: the target of a probe sample. None: no sample."""
        ...
