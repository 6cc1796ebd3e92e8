"""What a resumed run may have other values of, so that a run can be made longer, saved more often, or moved.

Everything else decides what the steps that are done were like, and is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mempo.errors import UserError

ALWAYS = (
    "data.client",
    "evaluate.agents",
    "evaluate.max_errors_in_row",
    "evaluate.max_in_flight",
    "evaluate.questions",
    "model.device",
    "model.gradient_checkpointing",
    "model.threads",
    "rl.log_rollouts_every",
    "rl.max_failed_share",
    "rl.optim.micro_batch_tokens",
    "rl.save_every",
    "rl.steps",
    "sampler.gpu_memory_fraction",
    "sampler.kv_cache_mib",
    "sft.keep_every",
    "sft.optim.micro_batch_tokens",
    "sft.save_every",
    "track",
)
"""How long, how often, where and how fast; `output` too. A number of steps may not fall below those that are done."""
BEFORE_RL = ("advantages", "evaluate", "rl", "sft.steps")
"""Also these, while no step of RL is saved: the evaluation of the start is made again then."""


def may_change(newest_stage: str | None) -> tuple[str, ...]:
    """The keys that may differ after a checkpoint of this stage (None: there is none yet)."""
    return ALWAYS if newest_stage == "rl" else (*ALWAYS, *BEFORE_RL)


def refuse_shorter(config: Any, newest_stage: str | None, done: int) -> None:
    """Raises UserError: fewer steps are asked for than are done."""
    if newest_stage is not None:
        asked = getattr(config, newest_stage).steps
        if asked < done:
            raise UserError(
                f"--resume with {newest_stage}.steps={asked}, but {done} steps are done; set {newest_stage}.steps to "
                f"{done} or more"
            )


def remarks(old: Mapping[str, Any], config: Any, newest_stage: str | None, done: int) -> list[str]:
    """What somebody should know who makes a run longer than it was meant to be."""
    found = []
    for stage in ("sft", "rl"):
        before, now = old[stage]["steps"], getattr(config, stage).steps
        schedule = getattr(config, stage).optim.schedule
        if stage == newest_stage and before != now and done and schedule != "constant":
            found.append(
                f"{stage}.steps {before} → {now}: the {schedule} learning rate now ends at step {now}; the {done} "
                f"steps that are done had the rates of {before}, so this is not the run that {now} steps at once "
                "would be"
            )
        if stage == newest_stage == "sft" and before != now and done and config.sft.lossy_steps is not None:
            found.append(
                f"sft.steps {before} → {now}: the {config.sft.lossy_steps} steps whose notes lose facts "
                f"(sft.lossy_steps) now begin after step {now - config.sft.lossy_steps}; the {done} steps that are "
                "done stay as they are"
            )
    before, now = old["evaluate"]["questions"], config.evaluate.questions
    if newest_stage == "rl" and before != now:
        found.append(
            f"evaluate.questions {before} → {now}: the start keeps its evaluation on {before} questions; the end is "
            f"evaluated on {now}"
        )
    return found
