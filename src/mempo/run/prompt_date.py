"""The date that chat templates write into prompts, fixed when a run or an evaluation begins.

Templates may print today's date. What is resumed a day later would then train on, or be judged by, other prompts. So
the day on which the work began is kept in its `config.yaml` as `prompt.date` and used from then on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import date
from pathlib import Path

from mempo.config import Resolved
from mempo.rollout.render import asks_for_date
from mempo.rollout.tokenizer import Tokenizer
from mempo.storage.read_files import PUT_BACK, exists, read_yaml


def with_saved_date(resolved: Resolved, folder: Path) -> Resolved:
    """The configuration with the date of the work that the folder holds; as it is where it names one itself, where the
    folder holds no work, or work that was begun without a date.

    Raises:
        DamagedFile: the configuration in the folder cannot be read.
    """
    if resolved.config.prompt.date is not None:
        return resolved
    file = folder / "config.yaml"
    prompt = read_yaml(file, PUT_BACK).get("prompt") if exists(file) else None
    saved = prompt.get("date") if isinstance(prompt, Mapping) else None
    return _with_date(resolved, saved, f"run {folder}") if isinstance(saved, str) else resolved


def with_todays_date(resolved: Resolved, tokenizer: Tokenizer) -> Resolved:
    """For work that begins: the configuration with today's date, where it has none and the chat template asks for
    it."""
    if resolved.config.prompt.date is not None or not asks_for_date(tokenizer, resolved.config.prompt):
        return resolved
    return _with_date(resolved, date.today().isoformat(), "the day on which this began")


def _with_date(resolved: Resolved, day: str, origin: str) -> Resolved:
    config = resolved.config
    prompt = type(config.prompt).model_validate(config.prompt.model_dump() | {"date": day})
    return dataclasses.replace(
        resolved,
        config=config.model_copy(update={"prompt": prompt}),
        origins={**resolved.origins, "prompt.date": origin},
    )
