"""Steps whose gradient is not finite: each is thrown away and counted; too many in a row end the run."""

from __future__ import annotations

from collections.abc import Mapping

from mempo.errors import UserError
from mempo.storage.run_folder import RunFolder

MOST_IN_ROW = 10


class FiniteSteps:
    """Told of every step of a stage; steps without an update say nothing."""

    def __init__(self, run: RunFolder, stage: str, done: int) -> None:
        self._run, self._stage = run, stage
        self._good, self._in_row = done, 0

    def step(self, step: int, metrics: Mapping[str, float | None]) -> bool:
        """Whether this is a state to save: while steps are thrown away, the checkpoint from before them stays.

        Raises:
            UserError: the gradient was not finite in `MOST_IN_ROW` steps in a row; it names that checkpoint.
        """
        thrown_away = metrics.get("update/not_finite")
        if thrown_away is not None and thrown_away < 1:
            self._good, self._in_row = step, 0
        elif thrown_away is not None:
            self._in_row += 1
        if self._in_row == MOST_IN_ROW:
            raise UserError(
                f"the gradient was not finite in {MOST_IN_ROW} steps of {self._stage} in a row, the last of them step "
                f"{step}; the weights are still those of step {self._good}{self._saved()}. Begin another run from "
                f"there with a lower {self._stage}.optim.lr, or in float32 (model.autocast=none, model.dtype=float32)"
            )
        return not self._in_row

    def _saved(self) -> str:
        found = [c for c in self._run.checkpoints() if c.stage == self._stage and c.step <= self._good]
        return f", and the last good checkpoint is {found[-1].path}" if found else ""
