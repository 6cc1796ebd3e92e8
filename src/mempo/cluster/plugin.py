# pyright: reportMissingImports=false
"""What verl loads (entry-point group `verl.plugins`) in every process of a run, Ray's workers included.

The import is light: our agent loop and trainer are imported, and so registered, when verl imports the modules that hold
its registries. An error there stops the process with its cause; one in this module would only be logged by verl at
DEBUG, which is why `mempo cluster doctor` asks verl itself whether the trainer is known.
"""

from __future__ import annotations

from typing import Any

from wrapt import register_post_import_hook

from mempo.cluster.questions import TRAINER


def _register_agent_loop(_: Any) -> None:
    import mempo.cluster.agent_loop  # noqa: F401 (registers itself)


def _register_trainer(module: Any) -> None:
    from mempo.cluster import trainer

    ours = getattr(trainer, "MempoTrainer", None)
    if ours is None:  # it is our module that imports verl's just now, and it registers itself after that
        return
    if module.get_trainer_cls(TRAINER) is not ours:
        raise RuntimeError(f"verl's trainer {TRAINER!r} is not ours but {module.get_trainer_cls(TRAINER)!r}")


register_post_import_hook(_register_agent_loop, "verl.experimental.agent_loop")
register_post_import_hook(_register_trainer, "verl.trainer.ppo.v1")
